"""`kvproof bugs`: plant the faults of public reports, one at a time, and say what caught each."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvproof.cli.options import JOBS, Jobs, require_folder

if TYPE_CHECKING:
    from kvproof.verify.bugs.bug import Bug
    from kvproof.verify.bugs.examine import Finding


def bugs(
    only: Annotated[
        str,
        typer.Option(
            metavar="PATTERN",
            help="A bug (A1), a group (A), a report, a property, or where; * and ? work.",
        ),
    ] = "",
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", dir_okay=False, help="Write the findings as JSON."),
    ] = None,
    jobs: Jobs = JOBS,
) -> None:
    """Plant public faults: 0 all caught, 1 one missed or a control not silent, 2 usage."""
    require_folder(json_file)
    from kvproof.verify.bugs import report
    from kvproof.verify.bugs.table import UNPLANTED, chosen

    console, start = Console(), time.perf_counter()
    selected = chosen(only)
    if not selected:
        raise typer.BadParameter(f"{only!r} is no bug, group, report, property or part.")
    findings = list(_watched(console, selected, jobs))
    unplanted = () if only else UNPLANTED
    result = report.Report(findings, unplanted, time.perf_counter() - start)
    report.show(console, result)
    if json_file is not None:
        json_file.write_text(json.dumps(report.to_json(result), indent=1) + "\n", encoding="utf-8")
    raise typer.Exit(0 if result.is_good else 1)


def _watched(console: Console, selected: list[Bug], jobs: int) -> Iterator[Finding]:
    """Yield each finding as it comes: with a bar where someone watches, else with a line."""
    from kvproof.verify.bugs.examine import jobs_of, run

    count, findings = len(jobs_of(selected)), run(selected, jobs)
    if not console.is_terminal:
        for number, item in enumerate(findings, start=1):
            line = f"[{number:>{len(str(count))}}/{count}] {_said(item)}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
            yield item
        return
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console, transient=True) as p:
        shown = p.add_task("", total=count)
        for item in findings:
            p.update(shown, advance=1, description=f"[dim]{_said(item)}[/dim]")
            yield item


def _said(item: Finding) -> str:
    if item.is_control:
        return f"control {item.name}: {'silent' if item.is_good else 'NOT SILENT'}"
    return f"{item.name}: {'caught' if item.is_good else 'NOT CAUGHT as expected'}"
