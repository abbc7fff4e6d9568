"""Work as it goes on: a live bar where someone watches, plain lines where the output is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from kvproof.verify.task import Task
    from kvproof.verify.workers import Finished


def watched(
    console: Console, work: Sequence[Task], finished: Iterable[Finished], jobs: int
) -> Iterator[Finished]:
    """Yield what is yielded, and show meanwhile how far the work has got."""
    if console.is_terminal:
        return _with_bar(console, work, finished, jobs)
    return _with_lines(console, work, finished)


def _with_bar(
    console: Console, work: Sequence[Task], finished: Iterable[Finished], jobs: int
) -> Iterator[Finished]:
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    counts: Counter[str] = Counter()
    waiting = [task.label for task in work]
    with Progress(*columns, TextColumn("{task.description}"), console=console, transient=True) as p:
        shown = p.add_task(_description(counts, waiting[:jobs]), total=len(work))
        for task, results in finished:
            waiting.remove(task.label)
            counts.update(str(result.verdict) for result in results)
            p.update(shown, advance=1, description=_description(counts, waiting[:jobs]))
            yield task, results


def _with_lines(
    console: Console, work: Sequence[Task], finished: Iterable[Finished]
) -> Iterator[Finished]:
    for number, (task, results) in enumerate(finished, start=1):
        counts = Counter(str(result.verdict) for result in results)
        line = f"[{number:>{len(str(len(work)))}}/{len(work)}] {task.label}: {_counted(counts)}"
        console.print(line, markup=False, highlight=False)
        yield task, results


def _description(counts: Counter[str], at_work: Sequence[str]) -> str:
    return f"{_counted(counts)}  [dim]{', '.join(at_work)}[/dim]"


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items())) or "-"
