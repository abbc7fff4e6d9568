"""Invariants as z3 terms, translated once for the same named instances and kept.

What is proved of sums from invariants alone is kept with them.

Most rows act on instances of the same names, so that most hypotheses of a proof are those of
another one. Mutants of a row share them too: their invariants are the same objects.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field, frozen

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import Expression, Total
from kvproof.spec.rows import Invariant
from kvproof.spec.walk import nodes
from kvproof.verify.terms import Term, Terms


@frozen
class Translation:
    """A term, and the cells and sums it is about."""

    term: Term
    terms: Terms


@define
class Translations:
    """What has been translated of one set of invariants; `_alive` keeps that set from going.

    `cores` holds, for what was asked about sums, the invariants that it was proved from.
    """

    _alive: tuple[object, ...]
    _kept: dict[object, Translation] = field(factory=dict)
    _summed: dict[str, tuple[str, ...]] = field(factory=dict)
    cores: dict[object, frozenset[str] | None] = field(factory=dict)

    def summed_roles(self, row: Invariant) -> tuple[str, ...]:
        """Return the roles over which the invariant sums: their names decide how sums are split."""
        if row.name not in self._summed:
            roles = {node.index.role for node in nodes(row.formula) if isinstance(node, Total)}
            self._summed[row.name] = tuple(sorted(roles))
        return self._summed[row.name]

    def of(self, key: object, fresh: Terms, tree: Callable[[], Expression]) -> Translation:
        """Return the translation kept under a key, made with `fresh` terms if there is none."""
        if key not in self._kept:
            self._kept[key] = Translation(fresh.of(tree()), fresh)
        return self._kept[key]


_BY_INVARIANTS: dict[tuple[int, ...], Translations] = {}


def translations_for(declaration: Declaration) -> Translations:
    """Return what is kept for declarations that differ in no more than their transitions."""
    parts = (
        declaration.invariants,
        declaration.variables,
        declaration.roles,
        declaration.constants,
        declaration.assumptions,
    )
    key = tuple(map(id, parts))
    if key not in _BY_INVARIANTS:
        _BY_INVARIANTS[key] = Translations(parts)
    return _BY_INVARIANTS[key]
