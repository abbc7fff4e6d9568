"""The mistakes that the language refuses, as an obligation like any other."""

from __future__ import annotations

import time

from kvproof.spec.checks import check
from kvproof.spec.declaration import Declaration
from kvproof.spec.location import DeclarationError
from kvproof.verify.verdict import Counterexample, Method, Result, Verdict


def check_well_formed(declaration: Declaration) -> list[Result]:
    """Return that the declaration has none of the mistakes that the language refuses."""
    start = time.process_time()
    verdict, reason = Verdict.PROVED, None
    try:
        check(declaration)
    except DeclarationError as error:
        verdict, reason = Verdict.REFUTED, Counterexample(str(error))
    return [
        Result(
            "declaration is well formed",
            "",
            "",
            Method.INITIAL,
            verdict,
            time.process_time() - start,
            reason,
        )
    ]
