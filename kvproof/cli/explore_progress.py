"""An exploration as it goes on: a live bar where someone watches, lines where output is kept."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import define, field
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

if TYPE_CHECKING:
    from kvproof.verify.explorer import Exploration, Explored, Scope

_KEEP_EVERY = 10.0  # seconds


def watched(
    console: Console,
    scope: Scope,
    done: Sequence[Explored],
    *,
    resume: Path | None,
    jobs: int,
    first: bool,
    most_states: int | None,
    starvation: bool,
) -> Exploration:
    """Explore and show how far it is; an interrupt ends it, and what is done is kept."""
    from kvproof.runtime.profile import Profile
    from kvproof.verify.explorer import explore
    from kvproof.verify.explorer.pass_lemmas import checks_of_passes

    is_safe = scope.profile == Profile.safe()
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, TextColumn("{task.description}"), console=console, transient=True)
    bar.disable = not console.is_terminal
    view = _View(console, bar, scope, list(done), resume)
    with bar:
        try:
            return explore(
                scope,
                checks=checks_of_passes() if is_safe else (),
                jobs=jobs,
                stop_at_first=first,
                most_states=most_states,
                starvation=starvation,
                done=done,
                report=view.add,
                watch=view.look,
            )
        except KeyboardInterrupt:
            return view.interrupted()
        finally:
            view.keep()


@define
class _View:
    console: Console
    bar: Progress
    scope: Scope
    parts: list[Explored]
    resume: Path | None
    start: float = field(factory=time.perf_counter)
    kept: float = field(factory=time.perf_counter)
    shown: TaskID = field(init=False)

    def __attrs_post_init__(self) -> None:
        total = len(list(self.scope.workloads()))
        self.shown = self.bar.add_task("", total=total, completed=len(self.parts))

    def look(self, states: int, transitions: int, waiting: int) -> None:
        """Show states and transitions of all workloads, and how many states wait."""
        seconds = time.perf_counter() - self.start
        states += sum(part.states for part in self.parts)
        transitions += sum(part.transitions for part in self.parts)
        rate = f"{states / seconds:,.0f} states/s, {transitions / seconds:,.0f} transitions/s"
        found = sum(len(part.findings) for part in self.parts)
        text = f"{states:,} states, {rate}, frontier {waiting:,}, {found} found"
        self.bar.update(self.shown, description=text)

    def add(self, part: Explored) -> None:
        """Take note of a workload that is done."""
        self.parts.append(part)
        self.bar.advance(self.shown)
        if not self.console.is_terminal:
            kinds = ", ".join(str(shape) for shape in part.workload)
            line = (
                f"[{len(self.parts)}] {kinds}: {part.states:,} states, {len(part.findings)} found"
            )
            self.console.print(line, markup=False, highlight=False)
        if time.perf_counter() - self.kept > _KEEP_EVERY:
            self.keep()

    def keep(self) -> None:
        """Write what is done."""
        from kvproof.verify.explorer import checkpoint

        if self.resume is not None:
            checkpoint.write(self.resume, self.scope, self.parts)
        self.kept = time.perf_counter()

    def interrupted(self) -> Exploration:
        """Return what has been done up to an interrupt."""
        from kvproof.verify.explorer import Exploration
        from kvproof.verify.explorer.findings import without_likes

        found = without_likes([finding for part in self.parts for finding in part.findings])
        seconds = time.perf_counter() - self.start
        return Exploration(self.scope, tuple(self.parts), seconds, False, found)
