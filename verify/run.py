"""Every obligation of a declaration: the table of checks, and the driver that discharges them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from attrs import frozen

from kvproof.spec.checks import check
from kvproof.spec.declaration import Declaration
from kvproof.spec.location import DeclarationError
from kvproof.spec.rows import Transition
from kvproof.verify.induction import check_consequences, check_initial, check_row
from kvproof.verify.selection import Selection
from kvproof.verify.task import Task
from kvproof.verify.verdict import Counterexample, Method, Result, Verdict
from kvproof.verify.workers import Finished, in_processes, in_this_process


@frozen
class Check:
    """A check of the whole declaration, and a guess of its time against that of one row."""

    label: str
    call: Callable[[Declaration], list[Result]]
    method: Method
    cost: float = 1.0


def check_well_formed(declaration: Declaration) -> list[Result]:
    """Return that the declaration has none of the mistakes that the language refuses."""
    start = time.process_time()
    verdict, reason = Verdict.PROVED, None
    try:
        check(declaration)
    except DeclarationError as error:
        verdict, reason = Verdict.REFUTED, Counterexample(str(error))
    return [
        Result(
            "declaration is well formed",
            "L2",
            "",
            Method.INITIAL,
            verdict,
            time.process_time() - start,
            reason,
        )
    ]


CHECKS = (
    Check("well formed", check_well_formed, Method.INITIAL),
    Check("start", check_initial, Method.INITIAL),
    Check("consequences", check_consequences, Method.CONSEQUENCE),
)


def tasks(declaration: Declaration) -> list[Task]:
    """Return all the work there is, the longest first."""
    whole = [_whole(declaration, item) for item in CHECKS]
    rows = [_row(declaration, row) for row in declaration.complete_transitions.values()]
    return sorted((*whole, *rows), key=lambda task: -task.cost)


def chosen(everything: Iterable[Task], selection: Selection) -> list[Task]:
    """Return the tasks that can yield something that was asked for."""
    return [task for task in everything if selection.may_choose(task)]


def run(work: Sequence[Task], jobs: int = 1, solver: str = "z3") -> Iterator[Finished]:
    """Return an iterator over each task with its results, in the order in which they end."""
    if jobs == 1 or len(work) < 2:
        return in_this_process(work, solver)
    return in_processes(work, jobs, solver)


def _whole(declaration: Declaration, item: Check) -> Task:
    return Task(item.label, partial(item.call, declaration), (item.method,), cost=item.cost)


def _row(declaration: Declaration, row: Transition) -> Task:
    methods = (Method.INDUCTION, Method.SATISFIABLE)
    return Task(
        row.name,
        partial(check_row, declaration, row),
        methods,
        row.name,
        (row.name, *methods, *_obligations(declaration, row)),
        cost=1.0 + len(row.parameters),
    )


def _obligations(declaration: Declaration, row: Transition) -> Iterator[str]:
    """Yield the names and the properties of what is to be shown of one row."""
    yield from (f"{row.name} can happen", "L2")
    for invariant in declaration.all_invariants:
        yield f"{row.name} keeps {invariant.name}"
        yield invariant.property
