"""Every report: those that are planted, those that cannot be, and the checks that look for them."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from kvproof.verify.bugs import (
    counts,
    leaks,
    loads,
    preemption,
    publication,
    queues,
    ranks,
    reuse,
    thrash,
    unreported,
)
from kvproof.verify.bugs.bug import Bug, Catcher, Unplanted

# By letter, in the order of the letters.
GROUPS = {
    "A": loads,
    "B": reuse,
    "C": leaks,
    "D": counts,
    "E": preemption,
    "F": queues,
    "G": thrash,
    "H": publication,
    "I": ranks,
    "X": unreported,
}
BUGS: tuple[Bug, ...] = tuple(bug for group in GROUPS.values() for bug in group.BUGS)
UNPLANTED: tuple[Unplanted, ...] = tuple(
    item for group in GROUPS.values() for item in group.UNPLANTED
)
BY_NAME = {bug.name: bug for bug in BUGS}


def title(letter: str) -> str:
    """Return in one sentence what a group is about."""
    first = (GROUPS[letter].__doc__ or "").partition("\n")[0]
    return first.partition(": ")[2]


def chosen(pattern: str) -> list[Bug]:
    """Return the bugs whose name, group, report, property or part of the house is the pattern.

    `*` and `?` work; an empty pattern chooses all.
    """
    wanted = pattern.casefold() or "*"
    return [bug for bug in BUGS if any(fnmatchcase(w.casefold(), wanted) for w in _words(bug))]


def _words(bug: Bug) -> tuple[str, ...]:
    return (bug.name, bug.name[0], *bug.reports, bug.breaks, bug.injection.where)


def controls(bugs: Sequence[Bug]) -> list[Catcher]:
    """Return every check that the bugs need, once."""
    return list(dict.fromkeys(bug.catcher for bug in bugs))
