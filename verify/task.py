"""A task: one call that discharges several obligations, and what is known of them beforehand."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from attrs import frozen

from kvproof.verify.verdict import Counterexample, Method, Result, Verdict


@frozen
class Task:
    """A call to make, in any process.

    `words` are the names, properties, rows and methods that its results can have; none means that
    they are not known beforehand. `cost` is a guess of its time against that of other tasks.
    """

    label: str
    call: Callable[[], list[Result]]
    methods: tuple[Method, ...]
    row: str = ""
    words: tuple[str, ...] = ()
    cost: float = 1.0


def perform(task: Task) -> list[Result]:
    """Return the task's results; an exception becomes one that is unknown and says why."""
    try:
        return task.call()
    except Exception:
        return [failed(task, traceback.format_exc())]


def failed(task: Task, reason: str) -> Result:
    """Return the one result of a task that did not come to its end."""
    return Result(
        f"{task.label} ran to its end",
        "",
        task.row,
        task.methods[0],
        Verdict.UNKNOWN,
        counterexample=Counterexample(reason),
    )
