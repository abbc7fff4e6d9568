"""The provers as catchers: the obligations of the rows in which a fault was planted, and others."""

from __future__ import annotations

import time
from collections.abc import Iterator

from attrs import evolve, frozen

from kvproof.spec.declaration import Declaration
from kvproof.verify.bugs.injection import Injection
from kvproof.verify.bugs.sighting import Sighting
from kvproof.verify.induction import results_of_row
from kvproof.verify.measures import check_measures_of_row
from kvproof.verify.progress import progress_results
from kvproof.verify.translation import row_translates
from kvproof.verify.verdict import Method, Result, Verdict


@frozen
class Proofs:
    """All that `kvproof verify` asks of some rows: that they keep each invariant and measure."""

    rows: tuple[str, ...]

    @property
    def name(self) -> str:
        """Say what is asked, and of what."""
        return f"proofs of {', '.join(self.rows)}"

    def look(self, injection: Injection) -> Sighting | None:
        """Return the obligations that are refuted, each by one row from a state that is allowed."""
        start, declaration = time.perf_counter(), injection.declaration()
        refuted = _refuted(result for name in self.rows for result in _of_row(declaration, name))
        return _sighting(refuted, start) if refuted else None


def _of_row(declaration: Declaration, name: str) -> Iterator[Result]:
    row = declaration.complete_transitions[name]
    yield from results_of_row(declaration, row, declaration.all_invariants)
    yield from check_measures_of_row(declaration, row)


def _refuted(results: Iterator[Result]) -> list[Result]:
    return [item for item in results if item.verdict is Verdict.REFUTED]


def _sighting(refuted: list[Result], start: float) -> Sighting:
    names = tuple(dict.fromkeys(item.name for item in refuted))
    seconds = time.perf_counter() - start
    return Sighting(_method(refuted[0].method), names, 1, "row", seconds=seconds)


def _method(method: Method) -> str:
    return "proof" if method is Method.INDUCTION else f"proof ({method})"


@frozen
class Progress:
    """What `kvproof verify` asks of all rows together: that wherever work is left, one can act."""

    @property
    def name(self) -> str:
        """Say what is asked."""
        return "proofs of progress"

    def look(self, injection: Injection) -> Sighting | None:
        """Return the first claim that is refuted; those about the faulty rows are asked first."""
        start, declaration = time.perf_counter(), injection.declaration()
        claims = sorted(declaration.progress, key=lambda c: set(injection.rows).isdisjoint(c.rows))
        results = progress_results(evolve(declaration, progress=tuple(claims), checked=False))
        refuted = next((item for item in results if item.verdict is Verdict.REFUTED), None)
        return None if refuted is None else _sighting([refuted], start)


@frozen
class Translation:
    """The check that the code of some rows does what the rows say."""

    rows: tuple[str, ...]

    @property
    def name(self) -> str:
        """Say what is asked, and of what."""
        return f"translation of {', '.join(self.rows)}"

    def look(self, injection: Injection) -> Sighting | None:
        """Return the row whose code does something else, and what."""
        start, names = time.perf_counter(), injection.core()
        declaration = injection.declaration()
        rows = (declaration.complete_transitions[name] for name in self.rows)
        refuted = _refuted(row_translates(declaration, row, names) for row in rows)
        if not refuted:
            return None
        reason = refuted[0].counterexample
        claim = f"{refuted[0].name}: {reason.explanation if reason else ''}"
        seconds = time.perf_counter() - start
        return Sighting("translation", (claim,), 1, "call", seconds=seconds)
