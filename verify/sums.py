"""What may be said about a sum over any number of instances.

Only the lemmas of `lemmas.py` are used, each by its instances: a sum of terms that are never
negative is not negative; terms that are never larger have a sum that is not larger; a sum is at
least each of its terms; a positive sum has a positive term.
Whether terms are never negative, or never larger, is a query of its own about an arbitrary term.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import TYPE_CHECKING, Any

import z3
from attrs import evolve, frozen

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import Expression, Index, Literal
from kvproof.spec.text import text
from kvproof.spec.walk import AnyCell, nodes, rename
from kvproof.verify.solvers import chosen, conjunction, decide
from kvproof.verify.terms import Sum, Term
from kvproof.verify.translations import translations_for
from kvproof.verify.trees import GENERIC, replace_parameters

if TYPE_CHECKING:
    from kvproof.verify.setting import Setting

POINTWISE_TIMEOUT_MILLISECONDS = 20_000


@frozen
class Fact:
    """One instance of a sum lemma, and the invariants that its hypothesis was proved from."""

    needs: frozenset[str]
    term: Term


def facts_about_sums(setting: Setting, known: int = 0, without: str = "") -> list[Fact]:
    """Return the instances of the sum lemmas for the sums that the setting has met.

    The first `known` sums have been spoken of. No fact rests on the invariant `without`.
    """
    facts: list[Fact] = []
    sums = list(setting.terms.sums.values())
    for item in sums[known:]:
        needs = never_larger(setting, Literal(0), item.body, item.role, without)
        if needs is not None:
            facts.append(Fact(needs, item.term >= 0))
            facts.extend(Fact(needs, term) for term in _at_least_each_term(setting, item))
    facts.extend(_comparisons(setting, sums, known, without))
    return facts


def _comparisons(setting: Setting, sums: list[Sum], known: int, without: str) -> Iterator[Fact]:
    for small, large in _pairs(sums, known):
        body = _with_arguments_of(small, large)
        if body is None:
            continue
        needs = never_larger(setting, small.body, body, small.role, without)
        if needs is not None:
            yield Fact(needs, small.term <= large.term)


def _pairs(sums: list[Sum], known: int) -> Iterator[tuple[Sum, Sum]]:
    """Yield the pairs of sums over one role of which at least one is new."""
    for (i, small), (j, large) in permutations(enumerate(sums), 2):
        if max(i, j) >= known and small.role == large.role and small.whole == large.whole:
            yield small, large


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
    names = setting.instances.get(item.role, ()) if item.whole else ()
    return [item.term >= setting.terms.of(term_of(item, name)) for name in names]


def term_of(item: Sum, instance: Index) -> Expression:
    """Return the term of the sum that belongs to `instance`."""
    named = rename(item.body, {Index(item.role, GENERIC): instance})
    filled = {f"${i}": argument for i, argument in enumerate(item.arguments)}
    return replace_parameters(named, filled)


def never_larger(
    setting: Setting, small: Expression, large: Expression, role: str, without: str = ""
) -> frozenset[str] | None:
    """Return the invariants from which `small <= large` follows for an arbitrary instance.

    None says that it does not follow, or only from the invariant `without`.
    """
    needs = _remembered(setting, small, large, role, "")
    if needs is None or without not in needs:
        return needs
    return _remembered(setting, small, large, role, without)


def _remembered(
    setting: Setting, small: Expression, large: Expression, role: str, without: str
) -> frozenset[str] | None:
    """Return the proof's result, made once for each set of invariants and solver."""
    cores = translations_for(setting.declaration).cores
    key = (chosen(), role, text(small), text(large), without)
    if key not in cores:
        cores[key] = _prove_pointwise(setting, small, large, role, without)
    return cores[key]


def _prove_pointwise(
    setting: Setting, small: Expression, large: Expression, role: str, without: str
) -> frozenset[str] | None:
    instances = _instances_in(setting.declaration, (small, large), role)
    own = evolve(setting, instances=instances, whole=False)
    solver = z3.Solver()
    solver.set("timeout", POINTWISE_TIMEOUT_MILLISECONDS)
    solver.add(z3.Not(own.term(small) <= own.term(large)))
    hypotheses = own.hypotheses()
    hypotheses.pop(without, None)
    switches = {name: z3.Bool(f"use {name}") for name in hypotheses}
    for name, terms in hypotheses.items():
        solver.add(z3.Implies(switches[name], conjunction(terms)))
    solver.add(own.assumptions() + own.domains())
    return _needed(solver, switches)


def _needed(solver: Any, switches: dict[str, Term]) -> frozenset[str] | None:
    """Return few of the switched hypotheses that exclude every state, or None if all do not."""
    solver.set("core.minimize", True)
    if solver.check(*switches.values()) != z3.unsat:
        return None
    core = solver.unsat_core()
    if decide(solver, core) != "unsat":
        return None
    few = {str(switch) for switch in core}
    return frozenset(name for name, switch in switches.items() if str(switch) in few)


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
