"""`kvproof mutate`: plant small faults one at a time, and say which of them nothing notices."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kvproof.cli.declared import declared
from kvproof.cli.options import JOBS, Jobs, require_folder

if TYPE_CHECKING:
    from kvproof.spec.declaration import Declaration
    from kvproof.verify.mutation.plan import Choice
    from kvproof.verify.mutation.score import Score


def mutate(
    only: Annotated[
        str,
        typer.Option(metavar="PATTERN", help="A row, or a part of what a fault is called."),
    ] = "",
    spec: Annotated[bool, typer.Option("--spec", help="Only faults in the declaration.")] = False,
    code: Annotated[bool, typer.Option("--code", help="Only faults in the core.")] = False,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", dir_okay=False, help="Write the score as JSON."),
    ] = None,
    jobs: Jobs = JOBS,
) -> None:
    """Plant faults: 0 each is noticed or justified, 1 one survives, 3 one is unknown, 2 usage."""
    require_folder(json_file)
    from kvproof.verify.mutation import score
    from kvproof.verify.mutation.plan import Choice, Side

    sides = [side for side, wanted in ((Side.SPEC, spec), (Side.CODE, code)) if wanted]
    console = Console()
    declaration = declared()
    choice = Choice(only, sides or list(Side), frozenset(declaration.transition))
    result = _score(console, declaration, choice, jobs)
    score.show(console, result)
    if json_file is not None:
        json_file.write_text(json.dumps(score.to_json(result), indent=1) + "\n", encoding="utf-8")
    raise typer.Exit(score.exit_code(result))


def _score(console: Console, declaration: Declaration, choice: Choice, jobs: int) -> Score:
    from kvproof.cli.mutation_progress import watched
    from kvproof.verify import run
    from kvproof.verify.mutation.fates import outcome_of
    from kvproof.verify.mutation.plan import plan
    from kvproof.verify.mutation.verdicts import scored

    start = time.perf_counter()
    work = plan(declaration, choice)
    if not work.tasks:
        raise typer.BadParameter(f"{choice.pattern!r} is no row and no part of a fault.")
    outcomes = {
        task.label: outcome_of(work.mutants[task.label], results)
        for task, results in watched(console, work, run.run(work.tasks, jobs))
    }
    ordered = [outcomes[task.label] for task in work.tasks]
    seconds = time.perf_counter() - start
    return scored(declaration, work, choice, ordered, seconds=seconds)
