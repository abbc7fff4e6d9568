"""What became of a fault, and the work that finds it out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import StrEnum
from functools import partial

from attrs import evolve, frozen

from kvproof.spec.declaration import Declaration
from kvproof.verify.core_text import Names
from kvproof.verify.mutation.code_mutants import CodeMutant, translation_of
from kvproof.verify.mutation.refutation import first_refutation
from kvproof.verify.mutation.row_mutants import Mutant
from kvproof.verify.mutation.sameness import difference
from kvproof.verify.task import Task
from kvproof.verify.verdict import Method, Result, Verdict


class Fate(StrEnum):
    """What became of a fault; only `SURVIVED` and `UNKNOWN` are bad."""

    KILLED = "killed"
    EQUIVALENT = "equivalent"
    JUSTIFIED = "justified"
    SURVIVED = "survived"
    UNKNOWN = "unknown"


@frozen
class Outcome:
    """A fault and its fate; `by` says which obligation notices it, or why none has to.

    `side` is `spec` for a row of the declaration, `code` for a function of the core.
    """

    side: str
    row: str
    fault: str
    fate: Fate
    by: str = ""
    method: str = ""
    seconds: float = 0.0


SAME = "means the same wherever the invariants hold"
METHODS = (Method.INDUCTION,)


def row_task(declaration: Declaration, mutant: Mutant) -> Task:
    """Return the task that tries a mutant of a row."""
    return Task(mutant.fault, partial(try_row, declaration, mutant), METHODS)


def code_task(declaration: Declaration, mutant: CodeMutant, names: Names) -> Task:
    """Return the task that tries a mutant of a function; `names` are those of its module."""
    return Task(mutant.fault, partial(try_code, declaration, mutant, names), (Method.TRANSLATION,))


def try_row(declaration: Declaration, mutant: Mutant) -> list[Result]:
    """Return one result: refuted is killed, proved means the same; none is a survivor."""
    start = time.process_time()
    original = declaration.complete_transitions[mutant.row.name]
    faulty = declaration.with_transition(mutant.row).complete_transitions[mutant.row.name]
    found = difference(declaration, original, faulty)
    if found.is_none:
        result: Result | None = Result(SAME, "", original.name, Method.CONSEQUENCE, Verdict.PROVED)
    else:
        result = first_refutation(declaration, mutant, found)
    return [] if result is None else [_timed(result, start)]


def try_code(declaration: Declaration, mutant: CodeMutant, names: Names) -> list[Result]:
    """Return what the translation check says of a mutant."""
    start = time.process_time()
    return [_timed(translation_of(declaration, mutant, names), start)]


def _timed(result: Result, start: float) -> Result:
    return evolve(result, seconds=time.process_time() - start)


FATES = {
    Verdict.REFUTED: Fate.KILLED,
    Verdict.PROVED: Fate.EQUIVALENT,
    Verdict.UNKNOWN: Fate.UNKNOWN,
}


def outcome_of(mutant: Mutant | CodeMutant, results: Sequence[Result]) -> Outcome:
    """Return what became of a mutant by the results of its task."""
    if isinstance(mutant, CodeMutant):
        side, row = "code", mutant.row
    else:
        side, row = "spec", mutant.row.name
    if not results:
        return Outcome(side, row, mutant.fault, Fate.SURVIVED)
    result = results[0]
    fate, method = FATES[result.verdict], str(result.method)
    return Outcome(side, row, mutant.fault, fate, result.name, method, result.seconds)
