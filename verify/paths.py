"""Every path through a piece of Python, found by running it again for each way to decide.

A formula that is asked for its truth value becomes a fork: the run goes on as if it were true, and
the code is run once more for the case that it is false. No path is tested for being possible: what
is to be proved of a path is proved under its conditions, and so holds of an impossible one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Generic, TypeVar

import z3
from attrs import define, field, frozen

from kvproof.verify.solvers import conjunction
from kvproof.verify.terms import Term

PATHS_MAX = 4096

Value = TypeVar("Value")


class TooManyPathsError(Exception):
    """The code forks so often that its paths were not all followed."""


@define
class Path:
    """One way through the code: the formulas it has asked for, and the answers it was given.

    `obligations` are terms that must hold wherever the path can be taken.
    """

    script: tuple[bool, ...] = ()
    answers: list[bool] = field(factory=list)
    conditions: list[Term] = field(factory=list)
    obligations: list[Term] = field(factory=list)
    _known: dict[int, bool] = field(factory=dict)

    def decide(self, formula: Term) -> bool:
        """Return the truth value that the formula has on this path."""
        if z3.is_not(formula):
            return not self.decide(formula.arg(0))
        if z3.is_true(formula) or z3.is_false(formula):
            return bool(z3.is_true(formula))
        number = formula.get_id()
        if number not in self._known:
            self._known[number] = self._fork(formula)
        return self._known[number]

    def _fork(self, formula: Term) -> bool:
        position = len(self.answers)
        answer = self.script[position] if position < len(self.script) else True
        self.answers.append(answer)
        # Kept in this list, the formula stays alive, and no other one can be given its id.
        self.conditions.append(formula if answer else z3.Not(formula))
        return answer

    def demand(self, formula: Term) -> None:
        """Note that the formula must hold if the run has come this far."""
        self.obligations.append(z3.Implies(self.condition, formula))

    @property
    def condition(self) -> Term:
        """Return the term that is true where this path is taken."""
        return conjunction(self.conditions)

    def untried(self) -> Iterator[tuple[bool, ...]]:
        """Yield the beginnings of the other paths that fork from this one."""
        for position in range(len(self.script), len(self.answers)):
            yield (*self.answers[:position], not self.answers[position])


@frozen
class Explored(Generic[Value]):
    """A path to its end: what the code returned, or what it raised."""

    path: Path
    value: Value | None
    error: Exception | None = None


_current: ContextVar[Path] = ContextVar("path")


def current_path() -> Path:
    """Return the path that is being run now."""
    return _current.get()


def explore(run: Callable[[], Value], at_most: int = PATHS_MAX) -> Iterator[Explored[Value]]:
    """Yield every path of `run`, which must do the same each time but for its forks."""
    scripts: list[tuple[bool, ...]] = [()]
    for _ in range(at_most):
        if not scripts:
            return
        explored = _follow(run, Path(scripts.pop()))
        scripts.extend(explored.path.untried())
        yield explored
    if scripts:
        raise TooManyPathsError(f"more than {at_most} paths")


def _follow(run: Callable[[], Value], path: Path) -> Explored[Value]:
    token = _current.set(path)
    try:
        return Explored(path, run())
    except Exception as error:
        return Explored(path, None, error)
    finally:
        _current.reset(token)
