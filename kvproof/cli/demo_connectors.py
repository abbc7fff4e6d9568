"""`kvproof demo --connector`: KV that is loaded instead of computed, and the same tokens."""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from random import Random
from typing import NoReturn

import attrs
import typer
from attrs import frozen
from rich.console import Console
from rich.text import Text

from kvproof.cli.demo_aborts import Aborts
from kvproof.cli.demo_choices import Options, Place
from kvproof.cli.demo_loads import LoadCounts
from kvproof.cli.demo_run import Run
from kvproof.cli.demo_verdict import faults, show
from kvproof.cli.demo_view import watch
from kvproof.cli.demo_workload import Workload
from kvproof.runtime import BrokenInvariant, CallerError, KVPool, SchedulerConfig
from kvproof.runtime.connector import Connector
from kvproof.runtime.connectors.folder import FolderConnector
from kvproof.runtime.connectors.host_memory import HostMemoryConnector
from kvproof.runtime.engine import NotANumberError
from kvproof.runtime.engine.loop import MakeConnector
from kvproof.runtime.kv_pool import StaleRead
from kvproof.verify.connector_faults import Choose, ConnectorFaults
from kvproof.verify.faulty_connector import FaultyConnector
from kvproof.verify.torn_files import TornFiles

FAULTS_PERCENT = 15


@frozen
class Stage:
    """One run with a connector: its name, where the KV is, and what can be torn there."""

    name: str
    make: MakeConnector
    folder: Path | None = None


def compare(console: Console, workload: Workload, options: Options) -> NoReturn:
    """Run the prompts without and with the connector; end with 1 if anything is wrong."""
    before = set(threading.enumerate())
    with ExitStack() as stack:
        wrong = _compared(console, workload, options, stack)
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    if left:
        console.print(Text(f"threads left: {', '.join(left)}", "bold red"))
    raise typer.Exit(1 if wrong or left else 0)


def _compared(
    console: Console, workload: Workload, options: Options, stack: ExitStack
) -> list[str]:
    """Carry out all runs and show them; return what is wrong."""
    if options.has_faults:
        stack.enter_context(_quiet())
    wrong: list[str] = []
    try:
        roomy = _without(workload, options)
        watch(console, roomy)
        for stage in stages(workload, options, stack):
            wrong += _carry_out(console, workload, options, roomy, stage)
    except (CallerError, MemoryError) as error:
        raise typer.BadParameter(str(error)) from error
    except (StaleRead, NotANumberError, BrokenInvariant, ConnectionError) as error:
        typer.echo(f"refuted: {error}", err=True)
        raise typer.Exit(1) from error
    return wrong


def stages(workload: Workload, options: Options, stack: ExitStack) -> Iterator[Stage]:
    """Yield the runs with the connector; what they need is ended with the stack."""
    if options.place is Place.HOST:
        capacity = sum(workload.blocks_needed(options.block_size))
        yield Stage("with host memory", lambda pool: HostMemoryConnector(pool, capacity))
    elif options.place is Place.FOLDER:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def make(pool: KVPool) -> Connector:
            return FolderConnector(pool, folder, model=f"demo-{options.seed}")

        yield Stage("with an empty folder", make, folder)
        yield Stage("with what the folder has", make, folder)
    else:
        from kvproof.cli.demo_peers import decode_with_peer

        yield Stage("with a prefill peer", decode_with_peer(workload, options.block_size, stack))


def _without(workload: Workload, options: Options) -> Run:
    size = options.block_size
    config = workload.config(sum(workload.blocks_needed(size)), size)
    return Run.of("with room for all", workload.engine(config, debug=options.debug))


def _carry_out(
    console: Console, workload: Workload, options: Options, roomy: Run, stage: Stage
) -> list[str]:
    """Carry out one run with a connector, close it, and show what came of it."""
    counts: list[LoadCounts] = []

    def make(pool: KVPool) -> Connector:
        connector = _with_faults(stage, pool, options) if options.has_faults else stage.make(pool)
        counts.append(LoadCounts(connector, pool.block_size))
        return counts[0]

    engine = workload.engine(_small(workload, options), debug=options.debug, make_connector=make)
    aborts = Aborts(len(workload.prompts) // 4, options.seed) if options.has_faults else None
    with closing(engine):
        run = Run.of(stage.name, engine, loads=counts[0], aborts=aborts)
        watch(console, run)
    show(console, workload, roomy, run)
    return faults(roomy, run)


def _small(workload: Workload, options: Options) -> SchedulerConfig:
    """Return the limits of a pool that preempts, with hashes to find blocks by."""
    blocks = options.blocks or workload.blocks_for_preemption(options.block_size)
    return attrs.evolve(
        workload.config(blocks, options.block_size),
        enable_prefix_caching=True,
        kv_load_failure_policy=options.policy.value,
    )


def _with_faults(stage: Stage, pool: KVPool, options: Options) -> Connector:
    choose: Choose = Random(options.seed).randrange
    tear = None if stage.folder is None else TornFiles(stage.folder)
    kinds = ConnectorFaults.all_kinds(FAULTS_PERCENT)
    return FaultyConnector(stage.make(pool), choose, pool, kinds, tear)


@contextmanager
def _quiet() -> Iterator[None]:
    """Let nobody hear of faults that were asked for; the tables count them."""
    logger = logging.getLogger("kvproof")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
