"""Where every rule comes from and where it went: rule, rows, properties and tests in one table.

`sources_table` is the document; `sources` is the same as data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from attrs import evolve, frozen

from kvproof.spec.declaration import Declaration
from kvproof.spec.markdown import NOTHING, lines, names, section
from kvproof.spec.marked_tests import marked_tests
from kvproof.spec.reports import REPORTS, TRACKERS, cited
from kvproof.spec.rows import Invariant, Measure, Progress
from kvproof.spec.rules import ITEMS, Rule

NO_TESTS = "the tests are not installed here"

Claim = Invariant | Measure | Progress


@frozen
class Source:
    """A rule, the properties that its claims belong to, and the tests that show it."""

    rule: Rule
    properties: tuple[tuple[str, tuple[str, ...]], ...]
    tests: tuple[str, ...]


def rules(declaration: Declaration) -> tuple[Rule, ...]:
    """Return the items of the reference and then the reports, each with its rows and claims."""
    return (*ITEMS, *(_answered(declaration, report) for report in REPORTS))


def claims(declaration: Declaration) -> dict[str, Claim]:
    """Return what the declaration states, by name; the least values of variables are left out."""
    stated: tuple[Claim, ...] = (
        *declaration.invariants,
        *declaration.measures,
        *declaration.progress,
    )
    return {claim.name: claim for claim in stated}


def sources(declaration: Declaration, tests: Mapping[str, tuple[str, ...]]) -> tuple[Source, ...]:
    """Return every rule with its properties and its tests."""
    return tuple(
        Source(rule, _properties(declaration, rule), tests.get(rule.name, ()))
        for rule in rules(declaration)
    )


def sources_table(declaration: Declaration, folder: Path | None) -> str:
    """Return the items of the reference and the public reports as two tables.

    The tests are those in `folder`; where it is None, the column says that there are none here.
    """
    tests = None if folder is None else marked_tests(folder)
    found = [_line(item, known=tests is not None) for item in sources(declaration, tests or {})]
    columns = ("rows", "property: stated by", "tests")
    parts = (
        f"# {declaration.name}: where its rules come from\n",
        section("What the reference does", ("item", "what it is", *columns), found[: len(ITEMS)]),
        section("What reports teach", ("report", "what went wrong", *columns), found[len(ITEMS) :]),
        _trackers(),
    )
    return "\n".join(parts)


def _answered(declaration: Declaration, report: Rule) -> Rule:
    """Return the rule of a report with the rows and the claims that cite it."""
    return evolve(
        report,
        rows=tuple(row.name for row in declaration.transitions if report.name in cited(row.rule)),
        claims=tuple(row.name for row in declaration.invariants if report.name in cited(row.rule)),
    )


def _properties(declaration: Declaration, rule: Rule) -> tuple[tuple[str, tuple[str, ...]], ...]:
    by_name = claims(declaration)
    found: dict[str, tuple[str, ...]] = {}
    for name in rule.claims:
        stated = by_name[name].property
        found[stated] = (*found.get(stated, ()), name)
    return tuple(found.items())


def _line(source: Source, *, known: bool) -> tuple[object, ...]:
    rule = source.rule
    sentence = f"{rule.sentence} ({rule.note}.)" if rule.note else rule.sentence
    stated = (f"{name}: {names(claims)}" for name, claims in source.properties)
    tests = lines(source.tests) if known else NO_TESTS
    return (rule.name, sentence, names(rule.rows), "<br>".join(stated) or NOTHING, tests)


def _trackers() -> str:
    """Return which tracker each short name of a report stands for."""
    meant = (f"`{short}` is {repository}" for short, repository in TRACKERS.items())
    return f"Of the reports, {', '.join(meant)}."
