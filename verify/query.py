"""One solver with hypotheses that can be switched off, asked about many claims."""

from __future__ import annotations

from collections.abc import Container, Iterable
from enum import Enum
from typing import Any

import z3
from attrs import define, field

from kvproof.spec.declaration import Declaration
from kvproof.verify.setting import Setting
from kvproof.verify.solvers import Solver, as_smtlib, chosen, conjunction, decide
from kvproof.verify.sums import Fact
from kvproof.verify.terms import Term
from kvproof.verify.trees import Instances
from kvproof.verify.verdict import Verdict

# By the clock, so that a machine that does much else at once needs more than the few seconds that
# the hardest query takes alone.
TIMEOUT_MILLISECONDS = 30_000


class Sat(Enum):
    """A solver's answer."""

    YES = "sat"
    NO = "unsat"
    UNKNOWN = "unknown"

    @property
    def as_unsatisfiable(self) -> Verdict:
        """Return the verdict of an obligation that demands there is no such state."""
        return {Sat.NO: Verdict.PROVED, Sat.YES: Verdict.REFUTED}.get(self, Verdict.UNKNOWN)

    @property
    def as_satisfiable(self) -> Verdict:
        """Return the verdict of an obligation that demands there is such a state."""
        return {Sat.YES: Verdict.PROVED, Sat.NO: Verdict.REFUTED}.get(self, Verdict.UNKNOWN)


@define
class Query:
    """Hypotheses about the named instances of a setting, and the claims tried against them."""

    setting: Setting
    solver: Any = field(factory=z3.Solver)
    switches: dict[str, Term] = field(factory=dict)
    last: str = ""
    record: bool = False
    _model: Any = field(default=None, init=False)
    _known_sums: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        """Assume what the declaration says about constants."""
        self.solver.set("timeout", TIMEOUT_MILLISECONDS)
        self.solver.add(self.setting.assumptions())

    def assume(self, terms: Iterable[Term]) -> None:
        """Assume terms for good."""
        self.solver.add(list(terms))

    def assume_switched(self, name: str, terms: Iterable[Term]) -> None:
        """Assume terms under a switch, so that one check can do without them."""
        switch = self.switches.setdefault(name, z3.Bool(f"use {name}"))
        self.solver.add(z3.Implies(switch, conjunction(terms)))

    def check(self, claim: Term | None = None, without: str = "") -> Sat:
        """Return whether some state satisfies every hypothesis, except one, and the claim."""
        self._state_new_facts()
        self.solver.push()
        if claim is not None:
            self.solver.add(claim)
        if without:
            self.solver.add(self._switched(self.setting.facts(without=without)))
        self.solver.add(self.setting.domains())
        switches = [switch for name, switch in self.switches.items() if name != without]
        answer = Sat(decide(self.solver, switches))
        self._model = self._found_state(switches) if answer is Sat.YES else None
        if self.record:
            self.last = as_smtlib(self.solver, switches)
        self.solver.pop()
        return answer

    def _state_new_facts(self) -> None:
        """Assume what is known of the sums that were met since the last check."""
        met = len(self.setting.terms.sums)
        self.solver.add(self._switched(self.setting.facts(self._known_sums)))
        self._known_sums = met

    def _switched(self, facts: list[Fact]) -> list[Term]:
        """Return the facts, each where the invariants that it rests on are assumed."""
        return [
            z3.Implies(conjunction(self.switches[name] for name in fact.needs), fact.term)
            for fact in facts
            if fact.needs <= self.switches.keys()
        ]

    def _found_state(self, switches: list[Term]) -> Any:
        """Return the model; another solver's `sat` is given one by z3, where z3 finds it."""
        if chosen() is not Solver.Z3 and self.solver.check(*switches) != z3.sat:
            return None
        return self.solver.model()

    @property
    def model(self) -> Any:
        """Return the state found by the last check that found one."""
        return self._model

    def values(self) -> tuple[tuple[str, str], ...]:
        """Return the cells that the state found by the last check decides, with their values."""
        cells = self.setting.terms.cells if self._model is not None else {}
        known = ((name, term) for name, term in cells.items() if not self.eval(term).eq(term))
        return tuple((name, self.shown(term, name)) for name, term in known)

    def eval(self, term: Term, *, complete: bool = False) -> Term:
        """Return what a term is in the state found by the last check."""
        return self._model.eval(term, model_completion=complete)

    def shown(self, term: Term, cell: str = "") -> str:
        """Return what a term is in the state found, by its name where the cell holds a member."""
        value = self.eval(term, complete=True)
        if cell in self.setting.terms.choices:
            members = self.setting.declaration.enumeration.members
            return members[int(value.as_long())][0]
        return str(value).lower()


def any_state(
    declaration: Declaration,
    instances: Instances,
    *,
    whole: bool = False,
    uses: Container[str] | None = None,
) -> Query:
    """Return a query about every state that satisfies the invariants, each under its switch.

    With `uses`, only the invariants named there are assumed.
    """
    query = Query(Setting(declaration, instances, whole))
    for name, terms in query.setting.hypotheses(uses).items():
        query.assume_switched(name, terms)
    return query
