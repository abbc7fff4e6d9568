"""Faults as they are tried: a live bar where someone watches, a line a row where it is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvproof.verify.mutation.fates import Outcome, outcome_of

if TYPE_CHECKING:
    from kvproof.verify.mutation.plan import Plan
    from kvproof.verify.workers import Finished


def watched(console: Console, work: Plan, finished: Iterable[Finished]) -> Iterator[Finished]:
    """Yield what is yielded, and show meanwhile how far the work has got."""
    return (_with_bar if console.is_terminal else _with_lines)(console, work, finished)


def _with_bar(console: Console, work: Plan, finished: Iterable[Finished]) -> Iterator[Finished]:
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    counts: Counter[str] = Counter()
    with Progress(*columns, TextColumn("{task.description}"), console=console, transient=True) as p:
        shown = p.add_task("-", total=len(work.tasks))
        for task, results in finished:
            outcome = outcome_of(work.mutants[task.label], results)
            counts[str(outcome.fate)] += 1
            p.update(
                shown, advance=1, description=f"{_counted(counts)}  [dim]{_place(outcome)}[/dim]"
            )
            yield task, results


def _with_lines(console: Console, work: Plan, finished: Iterable[Finished]) -> Iterator[Finished]:
    left = Counter(_row(label) for label in work.mutants)
    counts: dict[str, Counter[str]] = {row: Counter() for row in left}
    for task, results in finished:
        outcome = outcome_of(work.mutants[task.label], results)
        row = _row(task.label)
        counts[row][str(outcome.fate)] += 1
        left[row] -= 1
        if not left[row]:
            line = f"{outcome.side} {row}: {_counted(counts[row])}"
            console.print(line, markup=False, highlight=False)
        yield task, results


def _row(label: str) -> str:
    return label.partition(" ")[0]


def _place(outcome: Outcome) -> str:
    return f"{outcome.side} {outcome.row}"


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {fate}" for fate, number in sorted(counts.items())) or "-"
