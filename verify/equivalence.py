"""Whether a function of the core does in a trial what the declaration says, on every path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from types import FunctionType
from typing import Any

import z3
from attrs import define, field, frozen

from kvproof.spec.text import text
from kvproof.spec.walk import AnyCell
from kvproof.verify.paths import Explored, TooManyPathsError, explore
from kvproof.verify.query import TIMEOUT_MILLISECONDS, Sat
from kvproof.verify.solvers import Solver, chosen, conjunction, decide
from kvproof.verify.symbolic import whole_number
from kvproof.verify.symbolic_state import SymbolicState, Vocabulary
from kvproof.verify.symbolic_tables import TRUE, same
from kvproof.verify.terms import Term
from kvproof.verify.trial import Trial
from kvproof.verify.verdict import Counterexample, Verdict


@frozen
class Outcome:
    """What became of a trial."""

    verdict: Verdict
    reason: Counterexample | None = None


@frozen(eq=False)
class Cell:
    """A cell, what it holds before the call, and what is declared for after an accepted one."""

    tree: AnyCell
    before: Term
    after: Term


@frozen(eq=False)
class Ending:
    """How a path ends: the answer, and of each cell what it holds and whether that is known."""

    answer: bool | None
    cells: tuple[tuple[Term, Term], ...]


@define
class Comparison:
    """A trial and what it demands as z3 terms, ready to be held against a function."""

    trial: Trial
    words: Vocabulary = field(factory=Vocabulary)
    start: SymbolicState = field(init=False)
    guard: Term = field(init=False)
    cells: tuple[Cell, ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Translate what is declared."""
        terms, state = self.words.terms, self.trial.state(self.words)
        self.start = state
        self.guard = conjunction(terms.of(part) for part in self.trial.guard())
        self.cells = tuple(
            Cell(tree, terms.of(tree), terms.of(self.trial.after(tree))) for tree in state.cells()
        )

    def outcome(self, function: Any) -> Outcome:
        """Return whether the function does what the trial demands."""
        try:
            paths = list(explore(lambda: self._end(as_symbolic(function))))
        except TooManyPathsError as error:
            return Outcome(Verdict.UNKNOWN, Counterexample(str(error)))
        solver = z3.Solver()
        solver.set("timeout", TIMEOUT_MILLISECONDS)
        solver.add(self.start.hypotheses())
        faults = [self._fault(path) for path in paths]
        solver.add(z3.Or(faults))
        answer = Sat(decide(solver))
        if answer is not Sat.YES:
            return Outcome(answer.as_unsatisfiable)
        return Outcome(
            Verdict.REFUTED, self._explain(zip(paths, faults, strict=True), _model(solver))
        )

    def _end(self, function: Any) -> Ending:
        """Call the function with a state and arguments that no other path has changed."""
        state = self.start.copy()
        returned = function(state.root, *(copy(item) for item in self.trial.arguments))
        return Ending(
            self.trial.answer(returned), tuple(state.now(cell.tree) for cell in self.cells)
        )

    def _fault(self, explored: Explored[Ending]) -> Term:
        """Return the term that is true where the path is taken and does what is not declared."""
        owed = explored.path.obligations
        claims = [*owed, *(claim for _, claim in self._claims(explored))]
        return z3.And(explored.path.condition, z3.Not(conjunction(claims)))

    def _claims(self, explored: Explored[Ending]) -> Iterator[tuple[str, Term]]:
        """Yield what is to be true at the end of a path, each with what to say if it is not."""
        ending = explored.value
        if ending is None or ending.answer is None:
            yield _end_of(explored), z3.BoolVal(val=False)
            return
        if ending.answer:
            yield "accepts what the guard refuses", self.guard
        elif not self.trial.may_refuse:
            yield "refuses what the guard accepts", z3.Not(self.guard)
        for cell, (seen, known) in zip(self.cells, ending.cells, strict=True):
            wanted = cell.after if ending.answer else cell.before
            if not (same(seen, wanted) and same(known, TRUE)):
                yield f"leaves another {text(cell.tree)}", z3.And(known, seen == wanted)

    # --- Explaining -----------------------------------------------------------------------------

    def _explain(
        self, faults: Iterable[tuple[Explored[Ending], Term]], model: Any
    ) -> Counterexample:
        """Return what the path does that the model takes."""
        for explored, fault in faults:
            if model is not None and _is_false(model, z3.Not(fault)):
                return self._explained(explored, model)
        return Counterexample("some path does what is not declared; z3 did not say where")

    def _explained(self, explored: Explored[Ending], model: Any) -> Counterexample:
        wrong = [said for said, claim in self._claims(explored) if _is_false(model, claim)]
        if any(_is_false(model, item) for item in explored.path.obligations):
            wrong.append("gives a table another length than it has, or takes what it does not hold")
        path = " and ".join(" ".join(str(item).split()) for item in explored.path.conditions)
        return Counterexample(
            f"on the path where {path or 'nothing is asked'}, it {', and '.join(wrong)}",
            before=tuple(self._values(model, ((c.tree, c.before) for c in self.cells))),
            after=tuple(self._differences(explored, model)),
        )

    def _values(
        self, model: Any, cells: Iterable[tuple[AnyCell, Term]]
    ) -> Iterator[tuple[str, str]]:
        """Yield the inputs that the model decides."""
        parameters = {str(d): d() for d in model.decls() if d.arity() == 0}
        for tree, term in cells:
            parameters.pop(text(tree), None)
            if not model.eval(term).eq(term):
                yield text(tree), str(model.eval(term))
        yield from ((name, str(model.eval(term))) for name, term in parameters.items())

    def _differences(self, explored: Explored[Ending], model: Any) -> Iterator[tuple[str, str]]:
        ending = explored.value
        for cell, (seen, known) in zip(self.cells, ending.cells if ending else (), strict=False):
            wanted = cell.after if ending and ending.answer else cell.before
            if _is_false(model, z3.And(known, seen == wanted)):
                declared, found = (_shown(model, term) for term in (wanted, seen))
                yield text(cell.tree), f"declared {declared}, saw {found}"


def as_symbolic(function: Any) -> Any:
    """Return the function with an `int` that leaves symbolic numbers as they are."""
    if not isinstance(function, FunctionType):
        raise TypeError(f"{function!r} is no function")
    names = {**function.__globals__, "int": whole_number}
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__)


def _end_of(explored: Explored[Ending]) -> str:
    if explored.error is None:
        return "returns what means neither yes nor no"
    return f"raises {type(explored.error).__name__}: {explored.error}"


def _model(solver: Any) -> Any:
    """Return a state; where another solver said there is one, z3 is asked for it."""
    if chosen() is not Solver.Z3 and solver.check() != z3.sat:
        return None
    return solver.model()


def _shown(model: Any, term: Term) -> str:
    return str(model.eval(term, model_completion=True))


def _is_false(model: Any, term: Term) -> bool:
    return bool(z3.is_false(model.eval(term, model_completion=True)))
