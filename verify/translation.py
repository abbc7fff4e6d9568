"""The Python that runs means what the rows say: each function, on every path, in both directions.

The function that is checked is the one on disk. It is not read but run, on values that stand for
any value, once for each way in which its conditions can come out. Of each path it is proved that
the function returns True exactly where the guard holds, that then every stored variable of the
acting instances and of arbitrary others is what is declared, and that otherwise nothing changed.

A row about whole columns is run on columns of two instances. What it does element by element it
does to every element alike; a sum in it is shown to be the declared one for two terms.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import z3

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import FlagParameter, Index, Total
from kvproof.spec.rows import Transition
from kvproof.spec.walk import AnyCell, nodes
from kvproof.verify.batch_translation import batch_trials, has_batch
from kvproof.verify.core_text import Modules, core_modules
from kvproof.verify.equivalence import Comparison, Outcome
from kvproof.verify.instances import Instance, places
from kvproof.verify.setting import Names, alias_cases, guard_of, instances_for
from kvproof.verify.symbolic import SymbolicFlag, SymbolicNumber
from kvproof.verify.trees import Instances, effects_of
from kvproof.verify.trial import Application, Trial
from kvproof.verify.verdict import Counterexample, Method, Result, Verdict

PROPERTY = "S7"


def check_translation(declaration: Declaration, modules: Modules | None = None) -> list[Result]:
    """Return, for each row, that its functions do what it says.

    `modules` holds the names of `rows` and of `batches`; the one left out is read from disk.
    """
    core = core_modules(modules)
    rows = declaration.complete_transitions.values()
    results = [row_translates(declaration, row, core["rows"]) for row in rows]
    batched = [row for row in rows if has_batch(row)]
    return [*results, *(batch_matches(declaration, row, core["batches"]) for row in batched)]


def row_translates(
    declaration: Declaration, row: Transition, functions: Mapping[str, Any]
) -> Result:
    """Return that the scalar function of a row does what the row says."""
    names = [parameter.name for parameter in row.parameters]
    return _result(
        f"{row.name} is translated", row, functions, names, scalar_trials(declaration, row)
    )
