"""One solver with hypotheses that can be switched off, asked about many claims."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

import z3
from attrs import define, field

from kvproof.verify.setting import Setting
from kvproof.verify.terms import Term
from kvproof.verify.verdict import Verdict

TIMEOUT_MILLISECONDS = 5000


class Sat(Enum):
    """A solver's answer."""

    YES = "sat"
    NO = "unsat"
    UNKNOWN = "unknown"

    @property
    def as_unsatisfiable(self) -> Verdict:
        """Return the verdict of an obligation that demands there is no such state."""
        return {Sat.NO: Verdict.PROVED, Sat.YES: Verdict.REFUTED}.get(self, Verdict.UNKNOWN)


@define
class Query:
    """Hypotheses about the named instances of a setting, and the claims tried against them."""

    setting: Setting
    solver: Any = field(factory=z3.Solver)
    switches: dict[str, Term] = field(factory=dict)
    last: str = ""
    record: bool = False
    stated: int = 0

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
        self.solver.add(z3.Implies(switch, z3.And(list(terms))))

    def check(self, claim: Term | None = None, without: str = "") -> Sat:
        """Return whether some state satisfies every hypothesis, except one, and the claim."""
        self.solver.push()
        if claim is not None:
            self.solver.add(claim)
        self.solver.add(self.setting.facts() + self.setting.domains())
        switches = [switch for name, switch in self.switches.items() if name != without]
        answer = Sat(str(self.solver.check(*switches)))
        self._model = self.solver.model() if answer is Sat.YES else None
        if self.record:
            self.last = as_smtlib(self.solver, switches)
        self.solver.pop()
        return answer

    _model: Any = field(default=None, init=False)

    @property
    def model(self) -> Any:
        """Return the state found by the last check that found one."""
        return self._model


def as_smtlib(solver: Any, switches: list[Term]) -> str:
    """Return the solver's assertions, with the switches on, as an SMT-LIB script."""
    plain = z3.Solver()
    plain.add(solver.assertions())
    plain.add(switches)
    return str(plain.to_smt2())
