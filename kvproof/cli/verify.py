"""`kvproof verify`: discharge every obligation, and say what became of them."""

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
    from kvproof.verify.report import Report


def verify(
    only: Annotated[
        str, typer.Option(metavar="PATTERN", help="A name, property, row or method; * and ? work.")
    ] = "",
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", dir_okay=False, help="Write the results as JSON."),
    ] = None,
    jobs: Jobs = JOBS,
    solver: Annotated[str, typer.Option(metavar="z3|cvc5", help="Who decides.")] = "z3",
) -> None:
    """Prove the declaration: 0 all proved, 1 something refuted, 3 something unknown, 2 usage."""
    require_folder(json_file)
    _require_solver(solver)
    from kvproof.verify import report

    console = Console()
    result = _report(console, declared(), only, jobs, solver)
    report.show(console, result)
    if json_file is not None:
        json_file.write_text(json.dumps(report.to_json(result), indent=1) + "\n", encoding="utf-8")
    raise typer.Exit(report.exit_code(result.results))


def _report(
    console: Console, declaration: Declaration, only: str, jobs: int, solver: str
) -> Report:
    from kvproof.cli.progress import watched
    from kvproof.verify import run
    from kvproof.verify.report import Report
    from kvproof.verify.selection import selection

    start = time.perf_counter()
    selected = selection(declaration, only)
    work = run.chosen(run.tasks(declaration), selected)
    finished = dict(watched(console, run.longest_first(work), run.run(work, jobs, solver), jobs))
    results = [item for task in work for item in finished[task] if selected.chooses(item)]
    if not results:
        raise typer.BadParameter(f"{only!r} is no part of any name, property, row or method.")
    return Report(declaration, results, time.perf_counter() - start, complete=not only)


def _require_solver(name: str) -> None:
    from kvproof.verify.solvers import Solver, SolverMissingError, use

    if name not in list(Solver):
        raise typer.BadParameter(f"{name!r} is no solver; give {' or '.join(Solver)}.")
    try:
        with use(name):
            pass
    except SolverMissingError as error:
        raise typer.BadParameter(str(error)) from error
