"""A task: one call that discharges several obligations, and what is known of them beforehand."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from attrs import frozen

from kvproof.verify.verdict import Counterexample, Method, Result, Verdict


@frozen
class Task:
    """A call to make, in any process, and what is known of its results beforehand.

    `words` are the names, properties, rows and methods that they can have; none means that these
    are not known. `cost` is a guess of the time it takes, against that of other tasks.
    """

    label: str
    call: Callable[[], list[Result]]
    methods: tuple[Method, ...]
    names_rows: bool = True
    words: tuple[str, ...] = ()
    cost: float = 1.0


NOT_ENDED = "ran to its end"


def perform(task: Task) -> list[Result]:
    """Return the task's results; an exception becomes one that is unknown and says why."""
    try:
        return task.call()
    except Exception:
        return [failed(task, traceback.format_exc())]


def failed(task: Task, reason: str) -> Result:
    """Return the one result of a task that did not come to its end."""
    return Result(
        f"{task.label} {NOT_ENDED}",
        "",
        "",
        task.methods[0],
        Verdict.UNKNOWN,
        counterexample=Counterexample(reason),
    )


def has_failed(result: Result) -> bool:
    """Return whether the result stands for a task that did not come to its end."""
    return result.name.endswith(NOT_ENDED)
