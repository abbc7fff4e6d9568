"""Which solver decides: the one place that knows there is more than one.

Every query is built for z3. `use("cvc5")` has the same query decided by cvc5 from its SMT-LIB text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from importlib import import_module
from typing import Any

import z3

from kvproof.verify.terms import Term


class Solver(StrEnum):
    """The solvers that can decide a query."""

    Z3 = "z3"
    CVC5 = "cvc5"


class SolverMissingError(ImportError):
    """A solver was chosen that is not installed."""


_chosen: ContextVar[Solver] = ContextVar("chosen", default=Solver.Z3)


def chosen() -> Solver:
    """Return the solver that decides now."""
    return _chosen.get()


@contextmanager
def use(name: str) -> Iterator[None]:
    """Let the named solver decide every query inside the `with` block."""
    solver = Solver(name)
    if solver is Solver.CVC5:
        _require_cvc5()
    token = _chosen.set(solver)
    try:
        yield
    finally:
        _chosen.reset(token)


def decide(solver: Any, switches: Iterable[Term] = ()) -> str:
    """Return `sat`, `unsat` or `unknown` for a z3 solver's assertions with the switches on."""
    if chosen() is Solver.Z3:
        return str(solver.check(*switches))
    from kvproof.verify.cvc5_solver import answer

    return answer(as_smtlib(solver, switches))


def as_smtlib(solver: Any, switches: Iterable[Term] = ()) -> str:
    """Return the solver's assertions, with the switches on, as an SMT-LIB script."""
    solver.push()
    solver.add(list(switches))
    script = str(solver.to_smt2())
    solver.pop()
    return script


def conjunction(terms: Iterable[Term]) -> Term:
    """Return the conjunction of the terms; z3 writes an empty `And` as text no solver reads."""
    items = list(terms)
    return z3.And(items) if items else z3.BoolVal(val=True)


def _require_cvc5() -> None:
    try:
        import_module("cvc5")
    except ImportError as error:
        raise SolverMissingError(
            "the solver cvc5 was chosen and cannot be imported; it is an optional part:"
            " install kvproof[cvc5], or choose z3."
        ) from error
