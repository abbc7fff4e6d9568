"""Recordings as they are replayed: a live bar where someone watches, a line a file where not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from attrs import define
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from kvproof.runtime.profile import Profile
from kvproof.verify.difference import Difference
from kvproof.verify.outcome import Outcome, run_to_end
from kvproof.verify.recording import Recording, read_recording
from kvproof.verify.replay import replay


@define
class Replayed:
    """One recording, how far it has been replayed, and what differed if anything did."""

    path: Path
    requests: int = 0
    steps: int = 0
    difference: Difference | None = None
    outcome: Outcome | None = None

    @property
    def refused(self) -> int:
        """Requests that could never fit, and were refused when they came."""
        return len(self.outcome.refused) if self.outcome else 0


def watch(
    console: Console, files: list[Path], profile: Profile, *, by_outcome: bool
) -> list[Replayed]:
    """Replay files in turn until one differs, and show meanwhile how far it is.

    Raises:
        RecordingError: If a file is no recording that can be replayed.

    """
    show = _with_bar if console.is_terminal else _with_lines
    done = []
    for replayed in show(console, files, lambda file: _replayed(file, profile, by_outcome)):
        done.append(replayed)
        if replayed.difference is not None:
            break
    return done


def difference_table(path: Path, difference: Difference) -> Table:
    """Return the first difference as a table."""
    table = Table(title="first difference", title_justify="left", show_header=False)
    for name in ("step", "what", "expected", "seen"):
        table.add_row(name, Text(str(getattr(difference, name))))
    table.add_row("file", Text(str(path)))
    return table


def summary(replayed: list[Replayed]) -> str:
    """Return how much there was, when nothing differed."""
    steps, requests = sum(r.steps for r in replayed), sum(r.requests for r in replayed)
    refused = sum(r.refused for r in replayed)
    what = "drained, all blocks back" if replayed[0].outcome else "identical"
    counts = f"{_many(len(replayed), 'recording')}, {_many(steps, 'step')}"
    return f"{what}: {counts}, {_many(requests, 'request')}{_refusals(refused)}"


Work = Callable[[Path], Iterator[Replayed]]


def _replayed(file: Path, profile: Profile, by_outcome: bool) -> Iterator[Replayed]:
    """Yield one record again and again while a file is replayed, after each step."""
    recording = read_recording(file)
    requests, outcome = len(recording.header.workload), Outcome() if by_outcome else None
    replayed = Replayed(file, requests, outcome=outcome)
    for found in _comparison(recording, profile, outcome):
        replayed.steps += 1
        replayed.difference = found
        yield replayed
    yield replayed


def _comparison(
    recording: Recording, profile: Profile, outcome: Outcome | None
) -> Iterator[Difference | None]:
    if outcome is None:
        return replay(recording, profile)
    return run_to_end(recording, profile, outcome)


def _with_bar(console: Console, files: list[Path], work: Work) -> Iterator[Replayed]:
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console, transient=True) as p:
        shown = p.add_task("", total=len(files))
        for file in files:
            for replayed in work(file):
                p.update(shown, description=f"{file.name}  [dim]step {replayed.steps}[/dim]")
            p.advance(shown)
            yield replayed


def _with_lines(console: Console, files: list[Path], work: Work) -> Iterator[Replayed]:
    for number, file in enumerate(files, start=1):
        *_, replayed = work(file)
        place = f"[{number:>{len(str(len(files)))}}/{len(files)}]"
        line = f"{place} {file.name}: {_said(replayed)}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
        yield replayed


def _said(replayed: Replayed) -> str:
    if replayed.difference is not None:
        return f"differs in step {replayed.difference.step}"
    what = "identical" if replayed.outcome is None else "drained"
    counts = f"{_many(replayed.steps, 'step')}, {_many(replayed.requests, 'request')}"
    return f"{what}, {counts}{_refusals(replayed.refused)}"


def _refusals(count: int) -> str:
    return f", {count} refused that could never fit" if count else ""


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
