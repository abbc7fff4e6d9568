"""Which obligations a pattern chooses, decided as far as possible before any work is done.

A pattern that is exactly a property, a row or a method chooses by that alone (`S1` is not `S10`).
Any other is looked for in the name and in those three fields, as a part or with `*` and `?`.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from attrs import frozen

from kvproof.spec.declaration import Declaration
from kvproof.spec.properties import BY_NAME
from kvproof.verify.task import Task, has_failed
from kvproof.verify.verdict import Method, Result


@frozen
class Selection:
    """A pattern in lower case, and the names it may be as a whole; an empty one chooses all."""

    pattern: str
    rows: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset(Method)
    properties: frozenset[str] = frozenset(name.casefold() for name in BY_NAME)

    @property
    def is_exact(self) -> bool:
        """Return whether the pattern is the whole name of a property, a row or a method."""
        return self.pattern in self.rows | self.methods | self.properties

    def finds(self, words: Iterable[str]) -> bool:
        """Return whether the pattern chooses an obligation that these words describe."""
        folded = [word.casefold() for word in words]
        if self.is_exact:
            return self.pattern in folded
        return any(self.pattern in word or fnmatchcase(word, self.pattern) for word in folded)

    def chooses(self, result: Result) -> bool:
        """Return whether the result is one that was asked for; a failed task always is."""
        return has_failed(result) or self.finds(words_of(result))

    def may_choose(self, task: Task) -> bool:
        """Return whether the task could yield a result that was asked for."""
        if task.words:
            return self.finds(task.words)
        if self.pattern in self.methods:
            return self.pattern in task.methods
        return task.names_rows or self.pattern not in self.rows


def selection(declaration: Declaration, pattern: str) -> Selection:
    """Return the selection that a pattern means for this declaration."""
    rows = frozenset(name.casefold() for name in declaration.transition)
    return Selection(pattern.casefold(), rows)


def words_of(result: Result) -> tuple[str, ...]:
    """Return the fields of a result that a pattern is looked for in."""
    return result.name, result.property, result.row, result.method
