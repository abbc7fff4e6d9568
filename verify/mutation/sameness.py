"""Whether a row with a fault means the same, wherever the invariants hold: shown by z3.

If it does, no obligation can tell the two apart, and none needs to. If it does not, what differs
says which obligations can: a row that can do less breaks no invariant, and one that can do more
takes no run away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import z3
from attrs import frozen

from kvproof.spec.declaration import Declaration
from kvproof.spec.derive import written
from kvproof.spec.rows import Transition
from kvproof.verify.query import Query, Sat, any_state
from kvproof.verify.setting import Names, alias_cases, crowds, guard_of
from kvproof.verify.solvers import conjunction
from kvproof.verify.terms import Term
from kvproof.verify.trees import Effects, after, effects_of, simplify


@frozen
class Difference:
    """Whether a faulty row can do more than its original, less, or something else."""

    more: Sat
    less: Sat
    other: Sat
    where: tuple[tuple[str, str], ...] = ()

    @property
    def is_none(self) -> bool:
        """Return whether it is proved that the two rows mean the same."""
        return self.more is Sat.NO and self.less is Sat.NO and self.other is Sat.NO

    @property
    def is_known(self) -> bool:
        """Return whether the solver gave an answer to each question, or found a difference."""
        answers = (self.more, self.less, self.other)
        return Sat.YES in answers or Sat.UNKNOWN not in answers


@frozen(eq=False)
class Pair:
    """A row and its faulty form with the same instances, and a query about any state of them."""

    original: Transition
    faulty: Transition
    names: Names
    query: Query

    def more(self) -> Term | None:
        """Return the term that says only the faulty row can happen; None if that is plain."""
        return None if self._same_guard() else z3.And(self._faulty(), z3.Not(self._guard()))

    def less(self) -> Term | None:
        """Return the term that says only the original can happen."""
        return None if self._same_guard() else z3.And(self._guard(), z3.Not(self._faulty()))

    def other(self) -> Term | None:
        """Return the term that says that both can happen and leave different states."""
        if _same(self.original.effect, self.faulty.effect):
            return None
        differences = z3.Or([left != right for left, right in self._ends()])
        return z3.And(self._guard(), self._faulty(), differences)

    def _same_guard(self) -> bool:
        return _same(self.original.guard, self.faulty.guard)

    def _guard(self) -> Term:
        return self._holds(self.original)

    def _faulty(self) -> Term:
        return self._holds(self.faulty)

    def _holds(self, row: Transition) -> Term:
        return conjunction(self.query.setting.term(part) for part in guard_of(row, self.names))

    def _ends(self) -> Iterator[tuple[Term, Term]]:
        """Yield what each cell that either row writes holds after the one and after the other."""
        one, two = (effects_of(row.effect, self.names) for row in (self.original, self.faulty))
        for name in sorted(written(self.original) | written(self.faulty)):
            for cell in self.query.setting.cells_of(name):
                yield self._after(cell, one), self._after(cell, two)

    def _after(self, cell: object, effects: Effects) -> Term:
        setting = self.query.setting
        return setting.terms.of(simplify(setting.tree(after(cell, effects))))  # type: ignore[arg-type]


def difference(declaration: Declaration, original: Transition, faulty: Transition) -> Difference:
    """Return how two complete rows differ in states that satisfy the invariants."""
    pairs = list(_pairs(declaration, original, faulty))
    more, less, other = (_any(pairs, ask) for ask in (Pair.more, Pair.less, Pair.other))
    where = next((found for _, found in (more, less, other) if found), ())
    return Difference(more[0], less[0], other[0], where)


def _pairs(declaration: Declaration, original: Transition, faulty: Transition) -> Iterator[Pair]:
    for names in alias_cases(original):
        for instances in crowds(declaration, names):
            yield Pair(original, faulty, names, any_state(declaration, instances))


def _any(
    pairs: Iterable[Pair], ask: Callable[[Pair], Term | None]
) -> tuple[Sat, tuple[tuple[str, str], ...]]:
    """Return whether the question has a yes for some pair, and the state in which it has."""
    answer = Sat.NO
    for pair in pairs:
        asked = ask(pair)
        found = Sat.NO if asked is None else pair.query.check(asked)
        if found is Sat.YES:
            return found, pair.query.values()
        answer = Sat.UNKNOWN if found is Sat.UNKNOWN else answer
    return answer, ()


def _same(left: tuple[object, ...], right: tuple[object, ...]) -> bool:
    """Return whether two tuples hold the same trees, not only equal ones."""
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))
