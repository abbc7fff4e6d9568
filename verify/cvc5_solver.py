"""A second opinion: cvc5 decides the SMT-LIB text of a query that was built for z3.

The text is the only thing the two solvers share, so a mistake of either one shows. cvc5 is the
optional part `kvproof[cvc5]`; nothing imports this module unless it was chosen.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import cvc5

TIMEOUT_MILLISECONDS = 20_000

# Products of a cell and a constant of the configuration (blocks times BLOCK_SIZE) are not linear.
LOGIC = "QF_UFNIA"
OPTIONS = {
    "tlimit-per": str(TIMEOUT_MILLISECONDS),
    "nl-ext": "full",
    "nl-ext-tplanes": "true",
}


def answer(script: str) -> str:
    """Return `sat`, `unsat` or `unknown` for an SMT-LIB script with one `check-sat`."""
    solver = _fresh_solver()
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, script, "query")
    said = ""
    command = parser.nextCommand()
    while not command.isNull():
        said = str(command.invoke(solver, parser.getSymbolManager())).strip() or said
        command = parser.nextCommand()
    return said if said in {"sat", "unsat"} else "unknown"


def _fresh_solver() -> Any:
    solver = cvc5.Solver(_term_manager())
    for name, value in OPTIONS.items():
        solver.setOption(name, value)
    solver.setLogic(LOGIC)
    return solver


@cache
def _term_manager() -> Any:
    """Return the one store of terms that all queries share."""
    return cvc5.TermManager()
