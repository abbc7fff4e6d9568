"""The Python that runs means what the rows say: each function, on every path, in both directions.

The function that is checked is the one on disk. It is not read but run, on values that stand for
any value, once for each way in which its conditions can come out. Of each path it is proved that
the function returns True exactly where the guard holds, that then every stored variable of the
acting instances and of arbitrary others is what is declared, and that otherwise nothing changed.
The guard is compared in every state, whether or not the invariants hold in it; of tables no more
is assumed than that they are lists of their lengths.

A row about whole columns is run on columns of two instances. What it does element by element it
does to every element alike; a sum in it is shown to be the declared one for two terms. A batch form
is run on arrays of one and of two positions.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable

from attrs import evolve

from kvproof.spec.declaration import Declaration
from kvproof.spec.rows import Transition
from kvproof.verify.batch_trials import POSITIONS_MAX, batch_parameters, batch_trials, has_batch
from kvproof.verify.core_text import Modules, Names, names_on_disk
from kvproof.verify.equivalence import Comparison, Outcome
from kvproof.verify.scalar_trials import scalar_trials
from kvproof.verify.trial import Trial
from kvproof.verify.verdict import Counterexample, Method, Result, Verdict

PROPERTY = "S7"


def check_translation(declaration: Declaration, modules: Modules | None = None) -> list[Result]:
    """Return, for each row, that its functions do what it says.

    `modules` holds the names of `rows` and of `batches`; one that is left out is read from disk.
    """
    rows = declaration.complete_transitions.values()
    scalar, batch = (_names(modules or {}, name) for name in ("rows", "batches"))
    results = [row_translates(declaration, row, scalar) for row in rows]
    batched = (row for row in rows if has_batch(row))
    return [*results, *(batch_matches(declaration, row, batch) for row in batched)]


def _names(modules: Modules, module: str) -> Names | Exception:
    """Return the names of a module, or what went wrong when its text was run."""
    if module in modules:
        return modules[module]
    try:
        return names_on_disk(module)
    except Exception as error:
        return error


def row_translates(declaration: Declaration, row: Transition, names: Names | Exception) -> Result:
    """Return that the scalar function of a row does what the row says."""
    parameters = [parameter.name for parameter in row.parameters]
    trials = scalar_trials(declaration, row)
    outcome = _timed(row, lambda: _outcome(row.name, names, parameters, trials))
    return evolve(outcome, name=f"{row.name} is translated")


def batch_matches(declaration: Declaration, row: Transition, names: Names | Exception) -> Result:
    """Return that the batch form of a row does what the row does, position by position."""
    trials = batch_trials(declaration, row)
    outcome = _timed(row, lambda: _outcome(row.name, names, batch_parameters(row), trials))
    return evolve(outcome, name=f"batch {row.name} matches (to {POSITIONS_MAX} instances)")


def _timed(row: Transition, call: Callable[[], Outcome]) -> Result:
    start = time.process_time()
    outcome = call()
    seconds = time.process_time() - start
    reason = outcome.reason and evolve(outcome.reason, row=row.name)
    return Result("", PROPERTY, row.name, Method.TRANSLATION, outcome.verdict, seconds, reason)


def _outcome(
    name: str, names: Names | Exception, parameters: list[str], trials: Iterable[Trial]
) -> Outcome:
    """Return what becomes of a function in all its trials; one that refutes it is the end."""
    if isinstance(names, Exception):
        return _refuted(f"the module cannot be run: {names}")
    function = names.get(name)
    if not inspect.isfunction(function):
        return _refuted(f"there is no function {name}")
    seen = list(inspect.signature(function).parameters)
    if seen != ["state", *parameters]:
        return _refuted(f"its parameters are {seen}; expected {['state', *parameters]}")
    verdict = Verdict.PROVED
    for trial in trials:
        outcome = Comparison(trial).outcome(function)
        if outcome.verdict is Verdict.REFUTED:
            return outcome
        verdict = verdict if outcome.verdict is Verdict.PROVED else Verdict.UNKNOWN
    return Outcome(verdict)


def _refuted(explanation: str) -> Outcome:
    return Outcome(Verdict.REFUTED, Counterexample(explanation))
