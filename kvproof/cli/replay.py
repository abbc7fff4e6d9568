"""`kvproof replay`: do recorded workloads over again, and compare every decision."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kvproof.cli.options import ProfileName, profile_of

if TYPE_CHECKING:
    from kvproof.cli.replay_files import Replayed


def replay(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Recordings: .jsonl or .jsonl.gz.")
    ],
    profile: Annotated[
        ProfileName, typer.Option(help="Whose rules to follow; safe implies --outcome.")
    ] = ProfileName.VLLM_0_25_1,
    outcome: Annotated[
        bool,
        typer.Option("--outcome", help="Compare how requests end, not how each step decides."),
    ] = False,
) -> None:
    """Replay recordings: 0 identical, 1 the first difference, 2 usage or an unreadable file."""
    from kvproof.cli.replay_files import watch
    from kvproof.verify.recorded_line import RecordingError
    from kvproof.verify.recording import read_header

    console, start = Console(), time.perf_counter()
    by_outcome = outcome or profile is ProfileName.SAFE
    try:
        for file in files:
            read_header(file)
        replayed = watch(console, files, profile_of(profile), by_outcome=by_outcome)
    except RecordingError as error:
        raise typer.BadParameter(str(error)) from error
    _show(console, replayed, time.perf_counter() - start)
    raise typer.Exit(1 if replayed[-1].difference else 0)


def _show(console: Console, replayed: list[Replayed], seconds: float) -> None:
    """Print the first difference, or how much was identical."""
    from kvproof.cli.replay_files import difference_table, summary

    last = replayed[-1]
    if last.difference is not None:
        console.print(difference_table(last.path, last.difference))
    else:
        console.print(
            f"{summary(replayed)} in {seconds:.1f} s", style="bold green", highlight=False
        )
