"""`kvproof demo --connector peer` and `--disaggregated`: prefill in a process of its own."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvproof.cli.demo_workload import Workload
from kvproof.runtime import KVPool, SchedulerConfig
from kvproof.runtime.connector import Connector
from kvproof.runtime.connectors import disaggregated
from kvproof.runtime.connectors.peer_decode import PeerDecodeConnector
from kvproof.runtime.connectors.peer_settings import PeerSettings
from kvproof.runtime.engine.loop import MakeConnector

TIMEOUT_SECONDS = 120.0
SETTINGS = PeerSettings(
    "random", connect_timeout_seconds=TIMEOUT_SECONDS, transfer_timeout_seconds=30.0
)


def decode_with_peer(workload: Workload, block_size: int, stack: ExitStack) -> MakeConnector:
    """Start a process that prefills the prompts; return how to make the connector to it."""
    shared = _shared(workload, block_size)
    store = stack.enter_context(disaggregated.prefill_process(shared))

    def make(pool: KVPool) -> Connector:
        return PeerDecodeConnector(pool, store, shared.settings)

    return make


def compare_disaggregated(console: Console, workload: Workload, block_size: int) -> NoReturn:
    """Run the prompts in two processes and in this one alone; end with 1 if they differ."""
    shared = _shared(workload, block_size)
    alone = disaggregated.generate_alone(shared)
    try:
        apart = disaggregated.generate_disaggregated(shared, TIMEOUT_SECONDS)
    except (TimeoutError, RuntimeError) as error:
        typer.echo(f"refuted: {error}", err=True)
        raise typer.Exit(1) from error
    equal = {name: apart.get(name) == tokens for name, tokens in alone.items()}
    console.print(_table(workload, alone, equal))
    total = sum(map(len, alone.values()))
    verdict = (
        f"equal: {len(alone)} requests, {total} tokens, token for token, prefilled in one process"
        " and decoded in another"
    )
    different = [name for name, is_equal in equal.items() if not is_equal]
    if different:
        verdict = f"different: {', '.join(different)}"
    console.print(Text(verdict, "bold red" if different else "bold green"), soft_wrap=True)
    raise typer.Exit(1 if different else 0)


def _table(workload: Workload, alone: dict[str, list[int]], equal: dict[str, bool]) -> Table:
    table = Table("request", title="two processes, and one")
    for heading in ("prompt", "reply", "equal"):
        table.add_column(heading, justify="right")
    for (name, tokens), prompt in zip(alone.items(), workload.token_ids, strict=True):
        verdict = Text("yes", "green") if equal[name] else Text("no", "bold red")
        table.add_row(name, str(len(prompt)), str(len(tokens)), verdict)
    return table


def _shared(workload: Workload, block_size: int) -> disaggregated.Workload:
    """Return what both processes are told; the pool has room for all."""
    blocks = sum(workload.blocks_needed(block_size))
    config: SchedulerConfig = workload.config(blocks, block_size)
    sampling = workload.sampling
    return disaggregated.Workload(
        workload.token_ids, sampling.max_tokens, config, settings=SETTINGS, seed=sampling.seed
    )
