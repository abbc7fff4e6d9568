"""Every obligation of a declaration: the table of checks, and the driver that discharges them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from attrs import frozen

from kvproof.spec.declaration import Declaration
from kvproof.spec.rows import Transition
from kvproof.verify.freshness import check_freshness
from kvproof.verify.induction import check_consequences, check_initial, check_row
from kvproof.verify.inverse import check_inverses
from kvproof.verify.lemmas import check_lemmas
from kvproof.verify.load_bearing import check_load_bearing
from kvproof.verify.measures import check_measures
from kvproof.verify.progress import check_progress
from kvproof.verify.selection import Selection
from kvproof.verify.task import Task
from kvproof.verify.translation import check_translation
from kvproof.verify.verdict import Method, Result
from kvproof.verify.well_formed import check_well_formed
from kvproof.verify.witness import check_witnesses
from kvproof.verify.workers import Finished, in_processes, in_this_process


@frozen
class Check:
    """A check of the whole declaration, and what is known of its results beforehand."""

    label: str
    call: Callable[[Declaration], list[Result]]
    methods: tuple[Method, ...]
    cost: float = 1.0
    names_rows: bool = False


def check_sums(declaration: Declaration) -> list[Result]:
    """Return the lemmas about sums, which are the same for every declaration."""
    return check_lemmas()


CHECKS = (
    Check("well formed", check_well_formed, (Method.INITIAL,)),
    Check("start", check_initial, (Method.INITIAL,)),
    Check("consequences", check_consequences, (Method.CONSEQUENCE,)),
    Check("load-bearing", check_load_bearing, (Method.LOAD_BEARING,), cost=8),
    Check("measures", check_measures, (Method.MEASURE,), cost=8, names_rows=True),
    Check("inverses", check_inverses, (Method.INVERSE,), names_rows=True),
    Check("progress", check_progress, (Method.PROGRESS, Method.SATISFIABLE), cost=12),
    Check("witnesses", check_witnesses, (Method.WITNESS,), cost=2),
    Check("lemmas", check_sums, (Method.LEMMA,)),
    Check("translation", check_translation, (Method.TRANSLATION,), cost=10, names_rows=True),
    Check("freshness", check_freshness, (Method.TRANSLATION,)),
)


def tasks(declaration: Declaration) -> list[Task]:
    """Return all the work there is."""
    whole = [_whole(declaration, item) for item in CHECKS]
    rows = [_row(declaration, row) for row in declaration.complete_transitions.values()]
    return [*whole, *rows]


def chosen(everything: Iterable[Task], selection: Selection) -> list[Task]:
    """Return the tasks that can yield something that was asked for."""
    return [task for task in everything if selection.may_choose(task)]


def run(work: Sequence[Task], jobs: int = 1, solver: str = "z3") -> Iterator[Finished]:
    """Return an iterator over each task with its results, in the order in which they end."""
    ordered = longest_first(work)
    if jobs == 1 or len(work) < 2:
        return in_this_process(ordered, solver)
    return in_processes(ordered, jobs, solver)


def longest_first(work: Iterable[Task]) -> list[Task]:
    """Return the tasks in the order in which they are begun, so that no long one is left alone."""
    return sorted(work, key=lambda task: -task.cost)


def _whole(declaration: Declaration, item: Check) -> Task:
    return Task(
        item.label,
        partial(item.call, declaration),
        item.methods,
        names_rows=item.names_rows,
        cost=item.cost,
    )


def _row(declaration: Declaration, row: Transition) -> Task:
    methods = (Method.INDUCTION, Method.SATISFIABLE, *((Method.DIFFERENCE,) if row.breaks else ()))
    return Task(
        row.name,
        partial(check_row, declaration, row),
        methods,
        words=(row.name, *methods, *_obligations(declaration, row)),
        cost=1.0 + len(row.parameters),
    )


def _obligations(declaration: Declaration, row: Transition) -> Iterator[str]:
    """Yield the names and the properties of what is to be shown of one row."""
    yield from (f"{row.name} can happen", "L2")
    for invariant in declaration.all_invariants:
        verb = "breaks" if invariant.name in row.breaks else "keeps"
        yield f"{row.name} {verb} {invariant.name}"
        yield invariant.property
