"""`kvproof explain`: run a recorded workload until nothing moves, and say who waits for what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kvproof.cli.options import ProfileName, profile_of

if TYPE_CHECKING:
    from kvproof.verify.recording import Recording
    from kvproof.verify.stuck import Stand


def explain(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Recordings: .jsonl or .jsonl.gz.")
    ],
    profile: Annotated[
        ProfileName, typer.Option(help="Whose rules to follow.")
    ] = ProfileName.VLLM_0_25_1,
    step: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after this step.")
    ] = None,
    request: Annotated[
        str | None, typer.Option(metavar="ID", help="Explain this request alone.")
    ] = None,
) -> None:
    """Say who waits for what, held by whom: 0 it goes on or drains, 1 it is stuck, 2 usage."""
    from kvproof.verify.recorded_line import RecordingError
    from kvproof.verify.recording import read_recording

    console, stuck = Console(), False
    for file in files:
        try:
            recording = read_recording(file)
        except RecordingError as error:
            raise typer.BadParameter(str(error)) from error
        stuck |= _explain_one(console, recording, profile, step, request)
    raise typer.Exit(1 if stuck else 0)


def _explain_one(
    console: Console,
    recording: Recording,
    profile: ProfileName,
    last: int | None,
    request: str | None,
) -> bool:
    """Print what there is to say about one recording; return whether it is stuck."""
    from kvproof.verify.stuck import Ending, run_until_stuck

    names = [arrival.request.request_id for arrival in recording.header.workload]
    if request is not None and request not in names:
        seen = ", ".join(names)
        raise typer.BadParameter(f"{recording.header.path} has no {request!r}; it has {seen}.")
    stand = run_until_stuck(recording, profile_of(profile), last)
    for line in (_headline(recording, stand), *_lines(stand, request)):
        console.print(line, markup=False, highlight=False, soft_wrap=not console.is_terminal)
    return stand.ending in (Ending.FROZEN, Ending.CIRCLING, Ending.FAULTY)


def _headline(recording: Recording, stand: Stand) -> str:
    from kvproof.verify.stuck import Ending

    left = f"{len(stand.explanations)} of {len(recording.header.workload)} requests unfinished"
    every = "in each step" if stand.period == 1 else f"every {stand.period} steps"
    circle = f"the same {every}, and nobody gains a token"
    said = {
        Ending.DRAINED: f"drained in {stand.step} steps",
        Ending.STOPPED: f"after step {stand.step}, {left}",
        Ending.FROZEN: f"frozen in step {stand.step}, {left}; nothing changes any more",
        Ending.CIRCLING: f"in circles in step {stand.step}, {left}; {circle}",
        Ending.FAULTY: f"fails in step {stand.step}, {left}",
    }
    return f"{recording.header.path.name}: {said[stand.ending]}"


def _lines(stand: Stand, request: str | None) -> Iterator[str]:
    """Yield the faults, then a paragraph for each request that was asked for."""
    for fault in stand.faults:
        yield f"  step {fault.step}: {fault.what}: expected {fault.expected}, saw {fault.seen}"
    for explanation in stand.explanations:
        if request in (None, explanation.request_id):
            yield f"  {explanation}"
    left = {explanation.request_id for explanation in stand.explanations}
    if request is not None and request not in left:
        yield f"  {request}: {_became(stand, request)}."


def _became(stand: Stand, name: str) -> str:
    """Return what became of a request that is not there any more, or not yet."""
    if name in stand.outcome.refused:
        return f"refused when it came: {stand.outcome.refused[name].rstrip('.')}"
    return stand.outcome.end_of(name) or "aborted, or not there yet"
