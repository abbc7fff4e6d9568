"""Every rule has rows and tests, every row has a source, and every property is stated.

A test says which rules it shows with `@pytest.mark.rule(...)`; `kvproof spec --sources` prints it.
"""

from pathlib import Path

import pytest

from kvproof.spec.marked_tests import folder_of_tests, marked_tests
from kvproof.spec.properties import BY_NAME, PROPERTIES
from kvproof.spec.reports import REPORTS, TRACKERS, cited
from kvproof.spec.rows import Invariant, Transition
from kvproof.spec.rules import ITEMS, LATER, Rule
from kvproof.spec.scheduler import SCHEDULER
from kvproof.spec.sources import claims, rules

TESTS = Path(__file__).resolve().parents[1]
MARKED = marked_tests(TESTS)
RULES = {rule.name: rule for rule in rules(SCHEDULER)}
ROWS: tuple[Transition | Invariant, ...] = (*SCHEDULER.transitions, *SCHEDULER.invariants)
CITED = {report for row in ROWS for report in cited(row.rule)}


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_a_rule_has_a_row_and_a_test(rule: Rule) -> None:
    """A rule is kept by some row or claim and shown by some test, unless it says it comes later."""
    kept, shown = bool(rule.rows or rule.claims), rule.name in MARKED
    later = rule.note == LATER

    assert kept != later, f"{rule.name}: name its rows and claims, or note that it {LATER}"
    assert shown != later, f'{rule.name}: mark a test with @pytest.mark.rule("{rule.name}")'


def test_only_what_the_reference_does_may_come_later() -> None:
    """A report that a row cites is answered now, so no report is excused by a note."""
    assert [rule.name for rule in RULES.values() if rule.note == LATER] == ["9"]


def test_the_items_are_numbered() -> None:
    """The items of the reference are 1 to 16, and no report stands twice."""
    assert [rule.name for rule in ITEMS] == [str(number) for number in range(1, 17)]
    assert len({rule.name for rule in REPORTS}) == len(REPORTS)


def test_each_report_that_is_cited_has_a_sentence() -> None:
    """The reports with a sentence are those that rows cite, in the order of trackers' numbers."""
    assert {rule.name for rule in REPORTS} == CITED
    assert {name.partition("#")[0] for name in CITED if "/" not in name} == set(TRACKERS)


def test_each_row_has_a_source() -> None:
    """A transition and an invariant name a function of vLLM or a report; the rest, a property."""
    assert [row.name for row in ROWS if not (cited(row.rule) or row.rule.startswith("vLLM "))] == []
    assert {claim.property for claim in claims(SCHEDULER).values()} <= set(BY_NAME)


def test_each_row_belongs_to_an_item() -> None:
    """Every transition and every claim is named by an item, and what an item names exists."""
    rows = {name for item in ITEMS for name in item.rows}
    stated = {name for item in ITEMS for name in item.claims}

    assert rows == set(SCHEDULER.transition)
    assert stated == set(claims(SCHEDULER))


def test_each_marker_names_a_rule() -> None:
    """A test that names a rule which does not exist is a slip of the pen."""
    unknown = {name: tests for name, tests in MARKED.items() if name not in RULES}

    assert unknown == {}


def test_each_property_is_stated_or_says_where_it_is_shown() -> None:
    """A property that nothing states says in `elsewhere` what shows it."""
    stated = {claim.property for claim in claims(SCHEDULER).values()}

    assert [p.name for p in PROPERTIES if p.name not in stated and not p.elsewhere] == []


def test_the_tests_are_those_of_this_checkout() -> None:
    """The command reads the markers of the tests that stand beside the declaration."""
    assert folder_of_tests() == TESTS
