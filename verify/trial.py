"""A call of a function of the core on symbolic values, and what the declaration says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import field, frozen

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import Add, Expression, Index, Literal, Number, Total
from kvproof.spec.walk import AnyCell, nodes, rebuild, rename
from kvproof.verify.instances import Place
from kvproof.verify.symbolic_state import Orders, SymbolicState, Vocabulary
from kvproof.verify.trees import Effects, Instances, after

# Reads what a function returns: it did what it was asked for, it refused, or (None) neither.
Answer = Callable[[object], bool | None]


@frozen
class Application:
    """A row with its parameters filled in."""

    guard: tuple[Expression, ...]
    effects: Effects


@frozen(eq=False)
class Trial:
    """A call that stands for some rows, applied in turn: all of them, or none.

    Args:
        declaration: says which variables there are.
        rows: what the call stands for.
        instances: those that have a name, the ones that the rows act on and others.
        places: where they stand in the columns.
        arguments: what the function is called with after the state.
        answer: reads what the function returns.
        orders: the tables that are read in order.
        may_refuse: the function may refuse more than the guards do.

    """

    declaration: Declaration
    rows: tuple[Application, ...]
    instances: Instances
    places: Mapping[Index, Place]
    arguments: tuple[object, ...]
    answer: Answer
    orders: Orders = field(factory=dict)
    may_refuse: bool = False

    def state(self, words: Vocabulary) -> SymbolicState:
        """Return a fresh state to call the function with."""
        return SymbolicState(self.declaration, self.instances, self.places, words, self.orders)

    def guard(self) -> list[Expression]:
        """Return every conjunct that the rows demand, about the state before the call."""
        return [
            self._before(part, number) for number, row in enumerate(self.rows) for part in row.guard
        ]

    def after(self, cell: AnyCell) -> Expression:
        """Return what a cell holds after all rows, about the state before the call."""
        return self._before(cell, len(self.rows))

    def _before(self, tree: Expression, count: int) -> Expression:
        """Return a tree about the state after the first `count` rows, about the one before."""
        for row in reversed(self.rows[:count]):
            tree = after(summed(tree, self.instances), row.effects)
        return summed(tree, self.instances)


def summed(tree: Expression, instances: Instances) -> Expression:
    """Return the tree with each total written out as the sum over the named instances."""
    if not any(isinstance(node, Total) for node in nodes(tree)):
        return tree
    if not isinstance(tree, Total):
        return rebuild(tree, lambda part: summed(part, instances))
    body = summed(tree.body, instances)
    result: Number = Literal(0)
    for index in instances[tree.index.role]:
        term = rename(body, {tree.index: index})
        assert isinstance(term, Number)
        result = Add(result, term)
    return result
