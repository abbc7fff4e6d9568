"""Which faults are tried: of the declaration, of the core, or of both, those a pattern names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase

from attrs import field, frozen

from kvproof.spec.declaration import Declaration
from kvproof.verify.mutation.code_mutants import CodeMutant, Module, code_mutants
from kvproof.verify.mutation.fates import code_task, row_task
from kvproof.verify.mutation.row_mutants import Mutant, row_mutants
from kvproof.verify.task import Task

MODULES = ("rows", "batches")


class Side(StrEnum):
    """Where a fault is planted."""

    SPEC = "spec"
    CODE = "code"


@frozen
class Choice:
    """A side, or both, and a pattern: the name of a row, or a part of what a fault is called.

    A pattern that is one of `rows` chooses that row alone (`grow` is not `grow_for_load`).
    """

    pattern: str = ""
    sides: Sequence[Side] = tuple(Side)
    rows: frozenset[str] = frozenset()

    def finds(self, fault: str) -> bool:
        """Return whether a fault is chosen, by its text alone."""
        row = fault.partition(" ")[0]
        side = Side.CODE if row.partition(".")[0] in MODULES else Side.SPEC
        if side not in self.sides:
            return False
        pattern = self.pattern
        if pattern.rpartition(".")[2] in self.rows:
            return pattern in {row, row.rpartition(".")[2]}
        return pattern in fault or fnmatchcase(fault, pattern)


@frozen(eq=False)
class Plan:
    """The tasks that try the chosen faults, and the mutant that each task is about, by label."""

    tasks: list[Task] = field(factory=list)
    mutants: dict[str, Mutant | CodeMutant] = field(factory=dict)

    def add(self, task: Task, mutant: Mutant | CodeMutant) -> None:
        """Take in the task that tries a mutant."""
        self.tasks.append(task)
        self.mutants[task.label] = mutant


def plan(
    declaration: Declaration, choice: Choice, modules: Mapping[str, Module] | None = None
) -> Plan:
    """Return the work for a choice of faults; modules that are not given are read from disk."""
    made = Plan()
    if Side.SPEC in choice.sides:
        for mutant in _rows(declaration, choice):
            made.add(row_task(declaration, mutant), mutant)
    if Side.CODE in choice.sides:
        for name in MODULES:
            module = (modules or {}).get(name) or Module.on_disk(name)
            names = module.names()
            for changed in code_mutants(declaration, module):
                if choice.finds(changed.fault):
                    made.add(code_task(declaration, changed, names), changed)
    return made


def _rows(declaration: Declaration, choice: Choice) -> Iterator[Mutant]:
    for row in declaration.transitions:
        for mutant in row_mutants(row, declaration.enumeration):
            if choice.finds(mutant.fault):
                yield mutant
