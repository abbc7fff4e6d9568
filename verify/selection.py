"""Which obligations a pattern chooses, decided as far as possible before any work is done.

A pattern that is exactly a property, a row or a method chooses by that alone (`S1` is not `S10`).
Any other is looked for in the name and in those three fields, as a part or with `*` and `?`.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from attrs import field, frozen

from kvproof.spec.declaration import Declaration
from kvproof.spec.properties import BY_NAME
from kvproof.verify.task import Task
from kvproof.verify.verdict import Method, Result


@frozen
class Selection:
    """A pattern, read against a declaration; the empty one chooses everything."""

    pattern: str = field(converter=str.casefold)
    vocabulary: frozenset[str] = frozenset()

    @property
    def is_exact(self) -> bool:
        """Return whether the pattern is the whole name of a property, a row or a method."""
        return self.pattern in self.vocabulary

    def finds(self, words: Iterable[str]) -> bool:
        """Return whether the pattern chooses an obligation that these words describe."""
        folded = [word.casefold() for word in words]
        if self.is_exact:
            return self.pattern in folded
        return any(self.pattern in word or fnmatchcase(word, self.pattern) for word in folded)

    def chooses(self, result: Result) -> bool:
        """Return whether the result is one that was asked for."""
        return self.finds(words_of(result))

    def may_choose(self, task: Task) -> bool:
        """Return whether the task could yield a result that was asked for."""
        methods = {str(method) for method in Method}
        if self.is_exact and self.pattern in methods:
            return self.pattern in task.methods
        return not task.words or self.finds(task.words)


def selection(declaration: Declaration, pattern: str) -> Selection:
    """Return the selection that a pattern means for this declaration."""
    words = (*BY_NAME, *declaration.transition, *Method)
    return Selection(pattern, frozenset(str(word).casefold() for word in words))


def words_of(result: Result) -> tuple[str, ...]:
    """Return the fields of a result that a pattern is looked for in."""
    return result.name, result.property, result.row, result.method
