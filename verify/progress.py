"""Wherever there is work, some row can do it: no state is stuck, for any number of instances.

A stuck state satisfies the invariants and `when`, and refuses every listed row for every instance.
Three things about all instances are used, each for named ones only:

- an invariant, and the refusal of a row, for every choice of names;
- a total is at least each of its named terms;
- a total above zero has a witness: an instance, given a name here, whose term is above zero.

Names may stand for the same instance, so totals are left whole. A row refuses every number given
to it, so it may be asked about one number alone. Every role has an instance: a name whose total
has no witness can stand for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import product

import z3
from attrs import define, evolve, field

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import (
    Expression,
    FlagParameter,
    Index,
    Literal,
    NumberParameter,
    Total,
    Truth,
)
from kvproof.spec.rows import Progress, Transition
from kvproof.spec.text import text
from kvproof.spec.walk import cells, free_indices, nodes, rename
from kvproof.verify.induction import Outcome
from kvproof.verify.query import Query, Sat, any_state
from kvproof.verify.setting import Setting, guard_of
from kvproof.verify.solvers import conjunction
from kvproof.verify.sums import term_of
from kvproof.verify.terms import Term
from kvproof.verify.trees import GENERIC, replace_parameters
from kvproof.verify.verdict import Counterexample, Method, Result

# First a witness for each total that names no instance, then for each total that names one of
# those: a referenced block, then the table or fence that names it.
ROUNDS = 2
ASKED_NUMBERS = (0, 1)


@define
class Stuck:
    """The state in which none of the rows of a progress claim can happen, if there is one."""

    declaration: Declaration
    progress: Progress
    instances: dict[str, tuple[Index, ...]] = field(init=False)
    witnesses: dict[str, Index] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        """Name the instances that `when` speaks of, then witnesses, round by round."""
        roles = [role.name for role in self.declaration.roles if not role.single]
        given = self.progress.parameters
        self.instances = {name: tuple(i for i in given if i.role == name) for name in roles}
        newest: set[Index] = set()
        for _ in range(ROUNDS):
            newest = self._name_witnesses(newest)

    def query(self) -> Query:
        """Return the query that has a model if some state is stuck."""
        query = self._any_state()
        query.assume([query.setting.term(self.progress.when)])
        query.assume(self._refusals(query.setting))
        query.assume(self._witnessed(query.setting))
        return query

    def _any_state(self) -> Query:
        uses = self.progress.uses
        return any_state(self.declaration, self.instances, whole=True, uses=uses)

    def _name_witnesses(self, newest: set[Index]) -> set[Index]:
        """Name a witness for each total that mentions only the newest names, and return those."""
        setting = self._any_state().setting
        for tree in (self.progress.when, *self._guards_about_totals()):
            setting.term(tree)
        found: set[Index] = set()
        for key, item in setting.terms.sums.items():
            names = _named_in((item.body,), setting)
            if not names <= newest or bool(names) != bool(newest):
                continue
            if _named_in(item.arguments, setting) - set(self.progress.parameters):
                continue
            witness = Index(item.role, f"{item.role}{len(self.witnesses) + 1}")
            self.witnesses[key] = witness
            self.instances[item.role] += (witness,)
            found.add(witness)
        return found

    def _guards_about_totals(self) -> Iterator[Expression]:
        """Yield the parts of the listed rows' guards that are about a sum of no named instance."""
        for name in self.progress.rows:
            for part in self.declaration.complete_transitions[name].guard:
                totals = [node for node in nodes(part) if isinstance(node, Total)]
                if totals and not any(i.name != i.role for i in free_indices(part)):
                    yield part

    def _witnessed(self, setting: Setting) -> list[Term]:
        """Return that each witness has a term above zero if its total is."""
        sums = setting.terms.sums
        return [
            z3.Implies(sums[key].term >= 1, setting.terms.of(term_of(sums[key], witness)) >= 1)
            for key, witness in self.witnesses.items()
        ]

    def _refusals(self, setting: Setting) -> list[Term]:
        """Return that each listed row is refused, for every choice of names."""
        rows = (self.declaration.complete_transitions[name] for name in self.progress.rows)
        return [
            z3.Not(conjunction(setting.term(part) for part in guard))
            for row in rows
            for guard in _guards(row, setting, self.progress)
        ]


def _named_in(trees: tuple[Expression, ...], setting: Setting) -> set[Index]:
    indices = {index for tree in trees for cell in cells(tree) for index in cell.indices}
    return {i for i in indices if i.role in setting.instances and i.name != GENERIC}


def _guards(row: Transition, setting: Setting, progress: Progress) -> Iterator[list[Expression]]:
    """Yield the guard of the row, and what else is asked of it, for every choice of instances.

    Its values are fixed.
    """
    fixed, besides = progress.fixed.get(row.name, {}), progress.only.get(row.name)
    indices = [parameter for parameter in row.parameters if isinstance(parameter, Index)]
    values = [p for p in row.parameters if not isinstance(p, Index)]
    pools = ((fixed[i.name],) if i.name in fixed else setting.instances[i.role] for i in indices)
    for chosen in product(*pools):
        names = dict(zip(indices, chosen, strict=True))
        guard: list[Expression] = list(guard_of(row, names))
        if besides is not None:
            guard.append(rename(besides, names))
        for asked in product(*(_asked(p) for p in values)):
            given = {p.name: value for p, value in zip(values, asked, strict=True)}
            yield [replace_parameters(part, given) for part in guard]


def _asked(parameter: NumberParameter | FlagParameter) -> tuple[Expression, ...]:
    if isinstance(parameter, FlagParameter):
        return (Truth(value=False),)
    return tuple(Literal(number) for number in ASKED_NUMBERS)


def check_progress(declaration: Declaration) -> list[Result]:
    """Return, for each progress claim, that it is not about nothing, and that it is true."""
    return list(progress_results(declaration))


def progress_results(declaration: Declaration) -> Iterator[Result]:
    """Yield the same, claim by claim."""
    for progress in declaration.progress:
        yield _can_be_asked(declaration, progress)
        yield _goes_on(declaration, progress)


def _can_be_asked(declaration: Declaration, progress: Progress) -> Result:
    """Return that some state satisfies `when`: instances are distinct and totals are split."""
    start = time.process_time()
    roles = [role.name for role in declaration.roles if not role.single]
    given = {name: tuple(i for i in progress.parameters if i.role == name) for name in roles}
    query = any_state(declaration, given)
    answer = query.check(query.setting.term(progress.when))
    outcome = Outcome(answer.as_satisfiable, None, (query.last,))
    if answer is Sat.NO:
        reason = Counterexample(f"no state satisfies `when`: {text(progress.when)}")
        outcome = evolve(outcome, reason=reason)
    name = f"{progress.name} is about some state"
    return _result(name, progress, Method.SATISFIABLE, outcome, start)


def _goes_on(declaration: Declaration, progress: Progress) -> Result:
    start = time.process_time()
    query = Stuck(declaration, progress).query()
    answer = query.check()
    reason = None
    if answer is Sat.YES:
        rows = ", ".join(progress.rows)
        reason = Counterexample(f"none of {rows} can happen in this state", before=query.values())
    outcome = Outcome(answer.as_unsatisfiable, reason, (query.last,))
    return _result(progress.name, progress, Method.PROGRESS, outcome, start)


def _result(
    name: str, progress: Progress, method: Method, outcome: Outcome, start: float
) -> Result:
    return Result(
        name,
        progress.property,
        "",
        method,
        outcome.verdict,
        time.process_time() - start,
        outcome.reason,
        outcome.queries,
    )
