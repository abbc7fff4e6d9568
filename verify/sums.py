"""What may be said about a sum over any number of instances.

Only the lemmas of `lemmas.py` are used, each by its instances: a sum of terms that are never
negative is not negative; terms that are never larger have a sum that is not larger; a sum is at
least each of its terms; a positive sum has a positive term.
Whether terms are never negative, or never larger, is a query of its own about an arbitrary term.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import z3
from attrs import evolve

from kvproof.spec.expression import Expression, Index, Literal
from kvproof.spec.text import text
from kvproof.spec.walk import AnyCell, nodes, rename
from kvproof.verify.terms import Sum, Term
from kvproof.verify.trees import GENERIC, replace_parameters

if TYPE_CHECKING:
    from kvproof.spec.declaration import Declaration
    from kvproof.verify.setting import Setting

_pointwise: dict[tuple[int, str, str], bool] = {}


def facts_about_sums(setting: Setting) -> list[Term]:
    """Return the instances of the sum lemmas for the sums that the setting has met."""
    facts: list[Term] = []
    sums = list(setting.terms.sums.values())
    for item in sums:
        if never_larger(setting, Literal(0), item.body, item.role):
            facts.append(item.term >= 0)
            facts.extend(_at_least_each_term(setting, item) if item.whole else ())
    facts.extend(_comparisons(setting, sums))
    return facts


def _comparisons(setting: Setting, sums: list[Sum]) -> list[Term]:
    facts = []
    for small in sums:
        for large in sums:
            if small is large or small.role != large.role or small.whole != large.whole:
                continue
            body = _with_arguments_of(small, large)
            if body is not None and never_larger(setting, small.body, body, small.role):
                facts.append(small.term <= large.term)
    return facts


def _with_arguments_of(small: Sum, large: Sum) -> Expression | None:
    """Return the body of `large` if it is a part of the body of `small`, else None.

    Only such pairs are compared: a term that is a case of another term, as a conditional is of the
    value that it chooses.
    """
    if large.arguments:
        return None
    wanted = text(large.body)
    return next((part for part in nodes(small.body) if text(part) == wanted), None)


def _at_least_each_term(setting: Setting, item: Sum) -> list[Term]:
    names = setting.instances.get(item.role, ())
    return [item.term >= setting.terms.of(term_of(item, name)) for name in names]


def term_of(item: Sum, instance: Index) -> Expression:
    """Return the term of the sum that belongs to `instance`."""
    named = rename(item.body, {Index(item.role, GENERIC): instance})
    filled = {f"${i}": argument for i, argument in enumerate(item.arguments)}
    return replace_parameters(named, filled)


def never_larger(setting: Setting, small: Expression, large: Expression, role: str) -> bool:
    """Return whether `small <= large` for an arbitrary instance, whatever the arguments are."""
    key = (id(setting.declaration), text(small), text(large))
    if key not in _pointwise:
        _pointwise[key] = _prove_pointwise(setting, small, large, role)
    return _pointwise[key]


def _prove_pointwise(setting: Setting, small: Expression, large: Expression, role: str) -> bool:
    instances = _instances_in(setting.declaration, (small, large), role)
    own = evolve(setting, instances=instances, whole=False)
    claim = own.term(small) <= own.term(large)
    hypotheses = [term for terms in own.hypotheses().values() for term in terms]
    solver = z3.Solver()
    solver.set("timeout", 2000)
    solver.add(own.assumptions() + hypotheses + own.domains() + [z3.Not(claim)])
    return bool(solver.check() == z3.unsat)


def _instances_in(
    declaration: Declaration, trees: tuple[Expression, ...], role: str
) -> dict[str, tuple[Index, ...]]:
    single = {row.name for row in declaration.roles if row.single}
    found: dict[str, dict[Index, None]] = {role: {Index(role, GENERIC): None}}
    for tree in trees:
        for part in nodes(tree):
            if isinstance(part, AnyCell):
                for index in part.indices:
                    if index.role not in single:
                        found.setdefault(index.role, {})[index] = None
    return {name: tuple(indices) for name, indices in found.items()}
