"""A run as a short Python program that anyone can execute, change and step through."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import FlagParameter, Index
from kvproof.spec.rows import Invariant, Transition
from kvproof.spec.walk import speaks_of_before
from kvproof.verify.simulator import Arguments

Steps = tuple[tuple[str, Arguments], ...]


@frozen
class Run:
    """Steps from the initial state, each a row and its arguments, and the sizes they assume."""

    declaration: Declaration
    constants: Mapping[str, int]
    instances: Mapping[str, int]
    steps: Steps = ()


def program(run: Run, broken: Invariant | None = None) -> str:
    """Return the run as a program; its last line fails if the last step breaks the invariant."""
    lines = [*_opening(run), *(_call(run, step) for step in run.steps)]
    if broken is not None and speaks_of_before(broken.formula):
        lines.insert(-1, "before = run.snapshot()")
        lines.append("broken = run.step_violations(before)")
    elif broken is not None:
        lines.append("broken = run.violations()")
    if broken is not None:
        lines.append(f"assert not broken, broken  # {broken.name}")
    return "\n".join(lines) + "\n"


def _opening(run: Run) -> tuple[str, ...]:
    declaration = run.declaration.name.upper()
    return (
        f"from kvproof.spec.{run.declaration.name} import {declaration}",
        "from kvproof.verify.simulator import Simulator",
        "",
        f"constants = {_table(run.constants)}",
        f"instances = {_table(run.instances)}",
        f"run = Simulator({declaration}, constants, instances)",
    )


def _table(numbers: Mapping[str, int]) -> str:
    """Return a dict in the form that stays within a narrow terminal."""
    return f"dict({', '.join(f'{name}={number}' for name, number in numbers.items())})"


def _call(run: Run, step: tuple[str, Arguments]) -> str:
    row, arguments = step
    return f"run.{row}({', '.join(_arguments(run.declaration.transition[row], arguments))})"


def _arguments(row: Transition, arguments: Arguments) -> list[str]:
    """Return instances by position, and everything from the first number or flag on by name."""
    written: list[str] = []
    named = False
    for parameter, value in zip(row.parameters, arguments, strict=False):
        named = named or not isinstance(parameter, Index)
        shown = bool(value) if isinstance(parameter, FlagParameter) else value
        written.append(f"{parameter.name}={shown}" if named else f"{shown}")
    return written
