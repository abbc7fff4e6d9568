"""A run as a short Python program that anyone can execute, change and step through."""

from __future__ import annotations

import json
from collections.abc import Mapping

from attrs import frozen

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import FlagParameter, Index
from kvproof.spec.rows import Invariant, Transition
from kvproof.spec.walk import speaks_of_before
from kvproof.verify.simulator import Arguments


@frozen
class Run:
    """Steps from the initial state, each a row and its arguments, and the sizes they assume."""

    declaration: Declaration
    constants: Mapping[str, int]
    instances: Mapping[str, int]
    steps: tuple[tuple[str, Arguments], ...] = ()


def program(run: Run, broken: Invariant | None = None) -> str:
    """Return the run as a program; its last line fails if the last step breaks the invariant."""
    lines = [*_opening(run), *(_call(run, step) for step in run.steps)]
    if broken is not None and speaks_of_before(broken.formula) and run.steps:
        lines.insert(-1, "before = run.snapshot()")
    if broken is not None:
        lines.append(_assertion(broken))
    return "\n".join(lines) + "\n"


def _opening(run: Run) -> tuple[str, ...]:
    declaration = run.declaration.name.upper()
    return (
        f"from kvproof.spec.{run.declaration.name} import {declaration}",
        "from kvproof.verify.simulator import Simulator",
        "",
        f"constants = {json.dumps(dict(run.constants))}",
        f"run = Simulator({declaration}, constants, {json.dumps(dict(run.instances))})",
    )


def _call(run: Run, step: tuple[str, Arguments]) -> str:
    row, arguments = step
    return f"run.{row}({', '.join(_arguments(run.declaration.transition[row], arguments))})"


def _arguments(row: Transition, arguments: Arguments) -> list[str]:
    """Return instances by position, and everything from the first number or flag on by name."""
    written: list[str] = []
    named = False
    for parameter, value in zip(row.parameters, arguments, strict=True):
        named = named or not isinstance(parameter, Index)
        shown = bool(value) if isinstance(parameter, FlagParameter) else value
        written.append(f"{parameter.name}={shown}" if named else f"{shown}")
    return written


def _assertion(broken: Invariant) -> str:
    about_step = speaks_of_before(broken.formula)
    call = "run.step_violations(before)" if about_step else "run.violations()"
    return f"assert not {call}, {call}  # {broken.name}"
