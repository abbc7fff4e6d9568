"""The setting of one query: which instances have names, and what may be assumed about them."""

from __future__ import annotations

from collections.abc import Container, Iterator
from functools import partial
from itertools import product

import z3
from attrs import define, field

from kvproof.spec.declaration import Declaration
from kvproof.spec.derive import quantified
from kvproof.spec.expression import Expression, Formula, Index
from kvproof.spec.rows import Invariant, Transition
from kvproof.spec.walk import AnyCell, rename, speaks_of_before
from kvproof.verify.sums import Fact, facts_about_sums
from kvproof.verify.terms import Term, Terms
from kvproof.verify.translations import translations_for
from kvproof.verify.trees import Instances, split

Names = dict[Index, Index]


@define
class Setting:
    """Named instances of each role, the z3 terms over them, and the facts known before a row.

    With `whole`, names may stand for the same instance: sums are left whole and only bounded.
    Without it, names stand for distinct instances, which are split off every sum.
    """

    declaration: Declaration
    instances: Instances
    whole: bool = False
    terms: Terms = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Prepare the translation for these instances."""
        counts = {
            role.name: role.count for role in self.declaration.roles if role.count is not None
        }
        named = {role: len(names) for role, names in self.instances.items()}
        self.terms = Terms(counts, named)

    def tree(self, formula: Expression) -> Expression:
        """Return the tree with its sums split as this setting splits them."""
        return formula if self.whole else split(formula, self.instances)

    def term(self, formula: Expression) -> Term:
        """Return the z3 term of a tree whose indices are names of this setting."""
        return self.terms.of(self.tree(formula))

    def choices_for(self, formula: Expression) -> Iterator[Names]:
        """Yield every way to let the indices of a formula stand for named instances."""
        indices = quantified(formula)  # type: ignore[arg-type]
        pools = [self.instances.get(index.role, ()) for index in indices]
        for chosen in product(*pools):
            yield dict(zip(indices, chosen, strict=True))

    def cells_of(self, name: str) -> Iterator[AnyCell]:
        """Yield the cells that a variable has for the named instances."""
        variable = self.declaration.variable[name]
        pools = [self.instances.get(role.name, (role.index(role.name),)) for role in variable.of]
        for indices in product(*pools):
            cell = variable[indices]
            assert isinstance(cell, AnyCell)
            yield cell

    def assumptions(self) -> list[Term]:
        """Return the declared facts about constants."""
        return [self.terms.of(row.formula) for row in self.declaration.all_assumptions]

    def hypotheses(self, uses: Container[str] | None = None) -> dict[str, list[Term]]:
        """Return, for each invariant (of those in `uses`), what it says of the named instances."""
        return {
            row.name: self.instances_of(row)
            for row in self.declaration.all_invariants
            if not speaks_of_before(row.formula)
            and not row.consequence
            and (uses is None or row.name in uses)
        }

    def instances_of(self, row: Invariant) -> list[Term]:
        """Return the invariant for every choice of named instances."""
        kept = translations_for(self.declaration)
        split_off = [(role, self.instances.get(role, ())) for role in kept.summed_roles(row)]
        found = []
        for names in self.choices_for(row.formula):
            key = (row.name, tuple(names.values()), tuple(split_off), self.whole)
            fresh = Terms(self.terms.counts, self.terms.named)
            kept_one = kept.of(key, fresh, partial(self._instance, row, names))
            self.terms.absorb(kept_one.terms)
            found.append(kept_one.term)
        return found

    def _instance(self, row: Invariant, names: Names) -> Expression:
        return self.tree(rename(row.formula, names))

    def domains(self) -> list[Term]:
        """Return, for each cell that holds a member, that it holds one that exists."""
        size = len(self.declaration.enumeration.members)
        terms = (self.terms.cells[name] for name in self.terms.choices)
        return [z3.And(term >= 0, term < size) for term in terms]

    def facts(self, known: int = 0, without: str = "") -> list[Fact]:
        """Return what the sum lemmas say about the sums met after the first `known` ones."""
        return facts_about_sums(self, known, without)


def guard_of(row: Transition, names: Names) -> list[Formula]:
    """Return the guard of a row for the given instances, conjunct by conjunct."""
    return [rename(part, names) for part in row.guard]  # type: ignore[misc]


def alias_cases(row: Transition) -> Iterator[Names]:
    """Yield every way in which the parameters of a row can name the same instance."""
    indices = [parameter for parameter in row.parameters if isinstance(parameter, Index)]
    yield from _alias_cases(indices, {})


def _alias_cases(indices: list[Index], chosen: Names) -> Iterator[Names]:
    if not indices:
        yield chosen
        return
    first, *others = indices
    yield from _alias_cases(others, {**chosen, first: first})
    for same in dict.fromkeys(chosen.values()):
        if same.role == first.role:
            yield from _alias_cases(others, {**chosen, first: same})


def instances_for(
    declaration: Declaration, names: Names, alone: frozenset[str] = frozenset()
) -> Instances:
    """Return the instances a row acts on and an arbitrary other one of each role not `alone`."""
    instances: dict[str, tuple[Index, ...]] = {}
    for role in declaration.roles:
        if role.single:
            continue
        acting = [index for index in dict.fromkeys(names.values()) if index.role == role.name]
        others = () if role.name in alone else (role.index("other"),)
        instances[role.name] = (*acting, *others)
    return instances


def crowds(declaration: Declaration, names: Names) -> Iterator[Instances]:
    """Yield the instances with another one of each role, and those where there is no other.

    A role without a declared count always has another instance: one in its initial state changes
    no total. Of a role with a count, the acting instances may be all there are.
    """
    acting = {index.role for index in names.values()}
    counted = [role.name for role in declaration.roles if role.count is not None]
    choices = [(False, True) if role in acting else (False,) for role in counted]
    for flags in product(*choices):
        alone = (role for role, flag in zip(counted, flags, strict=True) if flag)
        yield instances_for(declaration, names, frozenset(alone))
