"""What an obligation is, and what became of it."""

from __future__ import annotations

from enum import StrEnum

from attrs import frozen


class Verdict(StrEnum):
    """The three ends of an obligation; only `PROVED` passes."""

    PROVED = "proved"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


class Method(StrEnum):
    """How an obligation is discharged."""

    INITIAL = "initial"
    INDUCTION = "induction"
    CONSEQUENCE = "consequence"
    DIFFERENCE = "difference"
    LOAD_BEARING = "load-bearing"
    SATISFIABLE = "satisfiable"
    WITNESS = "witness"
    MEASURE = "measure"
    PROGRESS = "progress"
    INVERSE = "inverse"
    LEMMA = "lemma"
    TRANSLATION = "translation"


@frozen
class Counterexample:
    """Why an obligation is refuted: the cells of a state, before and after a row where it has one.

    `program` is a run from the initial state that ends in the fault, where one was found.
    """

    explanation: str
    row: str = ""
    arguments: tuple[tuple[str, str], ...] = ()
    before: tuple[tuple[str, str], ...] = ()
    after: tuple[tuple[str, str], ...] = ()
    program: str = ""


@frozen
class Result:
    """One obligation and its verdict; `seconds` is the time its solver calls took."""

    name: str
    property: str
    row: str
    method: Method
    verdict: Verdict
    seconds: float = 0.0
    counterexample: Counterexample | None = None
    queries: tuple[str, ...] = ()
