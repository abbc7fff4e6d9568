"""What a fault is planted in: a row of the declaration, its code, a rule, or a handler.

An injection changes one of the four and leaves the others as they are, so that every check can be
asked about every injection; `HEALTHY` changes nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import Enum, StrEnum
from typing import Any
from unittest import mock

from attrs import evolve, field, frozen

from kvproof.runtime.profile import Profile
from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import Assignment
from kvproof.spec.rows import Transition
from kvproof.spec.scheduler import SCHEDULER
from kvproof.spec.text import text
from kvproof.verify.core_text import Names, core_folder, names_in, names_on_disk
from kvproof.verify.mutation.row_mutants import mutants


class Where(StrEnum):
    """Which part of the house has the fault."""

    NOWHERE = "nowhere"
    SPEC = "spec"
    CORE = "core"
    PROFILE = "profile"
    RUNTIME = "runtime"
    CONNECTOR = "connector"


@frozen
class Injection:
    """No fault at all; those that are one replace what they change.

    Attributes:
        what: what is wrong, in words.
        where: the part of the house that has the fault.
        rows: rows of the declaration that have it.

    """

    what: str = "no fault"
    where: Where = field(default=Where.NOWHERE, kw_only=True)
    rows: tuple[str, ...] = field(default=(), kw_only=True)

    def declaration(self) -> Declaration:
        """Return the declaration with the fault."""
        return SCHEDULER

    def profile(self) -> Profile:
        """Return the rules with the fault."""
        return Profile()

    def core(self) -> Names:
        """Return the names of the core's rows with the fault."""
        return names_on_disk("rows")

    def planted(self) -> AbstractContextManager[object]:
        """Return a context in which the runtime has the fault."""
        return nullcontext()


HEALTHY = Injection()


@frozen
class Bent(Injection):
    """A row of the declaration that says something else than it should."""

    bend: Callable[[Transition], Transition] = field(kw_only=True)

    def declaration(self) -> Declaration:
        """Return the declaration with the row as it is bent."""
        (name,) = self.rows
        return SCHEDULER.with_transition(self.bend(SCHEDULER.transition[name]))


def bent(row: str, what: str, bend: Callable[[Transition], Transition]) -> Bent:
    """Return a row that is changed by `bend`; `what` follows its name."""
    return Bent(f"{row} {what}", where=Where.SPEC, rows=(row,), bend=bend)


def dropped(fault: str) -> Bent:
    """Return a row that lacks one conjunct or one assignment, as `Mutant.fault` spells it.

    Raises ValueError if no row has that part.
    """
    name = fault.partition(" ")[0]
    if name not in SCHEDULER.transition:
        raise ValueError(f"{fault!r}: there is no row {name!r}; name a row of the declaration.")
    row = SCHEDULER.transition[name]
    found = [mutant.row for mutant in mutants(row) if mutant.fault == fault]
    if len(found) != 1:
        raise ValueError(f"{fault!r}: expected one such part, found {len(found)}; see the row.")
    return Bent(fault, where=Where.SPEC, rows=(name,), bend=lambda _: found[0])


def also_from(row: str, what: str, *sources: Any) -> Bent:
    """Return a row that also takes requests in states in which it must not."""
    return bent(row, what, lambda whole: evolve(whole, source=(*whole.source, *sources)))


def reassigned(row: Transition, new: Assignment) -> Transition:
    """Return a row in which the assignment to one cell is another one."""
    cell = text(new.cell)
    effect = tuple(new if text(item.cell) == cell else item for item in row.effect)
    return evolve(row, effect=effect)


@frozen
class Rewritten(Injection):
    """A function of the core in which the first assignment stands before the guard."""

    def core(self) -> Names:
        """Return the core's rows, this one written as somebody in a hurry would."""
        (name,) = self.rows
        path = core_folder() / "rows.py"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        (function,) = (
            node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name
        )
        place = next(i for i, node in enumerate(function.body) if isinstance(node, ast.If))
        function.body.insert(place, function.body.pop(place + self._of_counter(function, place)))
        return names_in(ast.unparse(tree), str(path))

    @staticmethod
    def _of_counter(function: ast.FunctionDef, place: int) -> int:
        """Return how far behind the guard the first counter is changed."""
        after = function.body[place + 1 :]
        return 1 + next(i for i, node in enumerate(after) if isinstance(node, ast.AugAssign))


def counts_first(row: str, what: str) -> Rewritten:
    """Return a function of the core that changes its first counter before it has looked."""
    return Rewritten(f"{row} {what}", where=Where.CORE, rows=(row,))


@frozen
class Ruled(Injection):
    """A profile with a rule that is not the safe one."""

    rules: Profile = field(kw_only=True)

    def profile(self) -> Profile:
        """Return the profile."""
        return self.rules


def ruled(**rules: Any) -> Ruled:
    """Return the safe profile with other rules."""
    what = ", ".join(f"{name}={_shown(value)}" for name, value in rules.items())
    return Ruled(f"Profile({what})", where=Where.PROFILE, rules=Profile(**rules))


def _shown(value: object) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)


@frozen
class Patched(Injection):
    """A handler that does something else; it is as it was when the context ends."""

    owner: Any = field(kw_only=True)
    name: str = field(kw_only=True)
    make: Callable[[Any], Any] = field(kw_only=True)

    def planted(self) -> AbstractContextManager[object]:
        """Return a context in which the handler is the one that `make` makes of the sound one."""
        return mock.patch.object(self.owner, self.name, self.make(getattr(self.owner, self.name)))


def patched(owner: Any, name: str, what: str, make: Callable[[Any], Any]) -> Patched:
    """Return a handler of the runtime, or of a connector, that is replaced.

    Args:
        owner: the class or module that has it.
        name: its name there.
        what: what the other one does.
        make: returns the other one, given the sound one.

    """
    home = getattr(owner, "__module__", None) or owner.__name__
    whose = f"{owner.__name__}." if isinstance(owner, type) else f"{home.rpartition('.')[2]}."
    is_connector = ".connectors." in home or home.endswith("_connector")
    where = Where.CONNECTOR if is_connector else Where.RUNTIME
    return Patched(f"{whose}{name} {what}", where=where, owner=owner, name=name, make=make)
