"""The faults of public reports: the data are well formed, what is planted is caught, and undone."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest

from kvproof.runtime import Profile
from kvproof.runtime.transfers import Transfers
from kvproof.spec.further_reports import FURTHER
from kvproof.spec.properties import BY_NAME as PROPERTIES
from kvproof.spec.reports import REPORTS
from kvproof.spec.scheduler import SCHEDULER
from kvproof.verify.bugs import report, table
from kvproof.verify.bugs.bug import Bug, Catcher, Unplanted
from kvproof.verify.bugs.examine import Finding, control, examine, jobs_of, perform, run
from kvproof.verify.bugs.injection import HEALTHY, Where, dropped
from kvproof.verify.bugs.proof_catchers import Proofs, Translation
from kvproof.verify.bugs.run_catchers import TransferFuzz
from kvproof.verify.bugs.sighting import EnoughError, Sighting, Sightings
from kvproof.verify.bugs.table import BUGS, BY_NAME, UNPLANTED

# One of each kind of injection and of check, each found within about a second.
SLICE = ("B1", "C10", "D4", "D6", "E5", "F5", "H1", "H5", "X1")
CAUGHT_MIN = 45


# --- The data -------------------------------------------------------------------------------------


def test_enough_is_planted() -> None:
    """Most reports are planted, and no name stands twice."""
    names = [bug.name for bug in BUGS] + [item.name for item in UNPLANTED]

    assert len(BUGS) >= CAUGHT_MIN
    assert len(set(names)) == len(names)
    assert {name[0] for name in names} == set(table.GROUPS)


def test_each_report_is_told_in_a_sentence() -> None:
    """The reports are those that the declaration knows, cited by a row or told beside."""
    known = {rule.name for rule in (*REPORTS, *FURTHER)}
    named = {name for bug in BUGS for name in bug.reports}
    named |= {name for item in UNPLANTED for name in item.reports}

    assert named <= known, sorted(named - known)
    assert {rule.name for rule in FURTHER} <= named
    assert not {rule.name for rule in FURTHER} & {rule.name for rule in REPORTS}


@pytest.mark.parametrize("bug", BUGS, ids=list(BY_NAME))
def test_a_bug_is_well_formed(bug: Bug) -> None:
    """It breaks a property that exists, changes something, and says what a check must say."""
    assert bug.breaks in PROPERTIES
    assert bug.injection.where is not Where.NOWHERE
    assert bug.expected
    re.compile(bug.expected)
    assert set(bug.injection.rows) <= set(SCHEDULER.transition)


@pytest.mark.parametrize("item", UNPLANTED, ids=lambda item: item.name)
def test_what_is_not_planted_says_why(item: Unplanted) -> None:
    """The reason is one sentence."""
    assert item.reason.endswith(".")
    assert len(item.reason) > 20


def test_no_check_is_named_after_a_bug() -> None:
    """Every check is asked with the same settings whatever it is asked about, and there are few."""
    checks = table.controls(BUGS)

    assert len({check.name for check in checks}) == len(checks)
    assert not [check.name for check in checks for bug in BUGS if bug.name in check.name.split()]


def test_a_part_that_no_row_has_is_refused() -> None:
    """A slip in the name of a part is found when the table is read."""
    with pytest.raises(ValueError, match="there is no row 'grwo'"):
        dropped("grwo without guard queued[b]")
    with pytest.raises(ValueError, match="expected one such part, found 0"):
        dropped("grow without guard nothing")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("A1", {"A1"}),
        ("a1", {"A1"}),
        ("vllm#45388", {"A2"}),
        ("core", {"C11", "D6"}),
        ("nothing", set()),
    ],
)
def test_bugs_are_chosen_by_name_report_or_place(pattern: str, names: set[str]) -> None:
    """A pattern is a whole word of a bug, in any case."""
    assert {bug.name for bug in table.chosen(pattern)} == names


def test_groups_and_patterns_choose_several() -> None:
    """A letter is a group, and `*` works."""
    group = {name for name in BY_NAME if name[0] == "B"}

    assert {bug.name for bug in table.chosen("B")} == group
    assert {bug.name for bug in table.chosen("B*")} == group
    assert table.chosen("") == list(BUGS)


# --- Catching -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SLICE)
def test_a_planted_fault_is_caught(name: str) -> None:
    """The check sees what it is expected to see."""
    found = perform((name, False))

    assert found.is_good, found
    assert found.sighting is not None
    assert found.sighting.length >= 1


@pytest.mark.parametrize(
    "check",
    [Proofs(("drain", "retire")), Translation(("grow",)), TransferFuzz(runs=15)],
    ids=lambda check: check.name,
)
def test_a_check_is_silent_about_the_healthy_house(check: Catcher) -> None:
    """What catches a fault says nothing where there is none."""
    assert control(check).is_good


def test_what_is_planted_is_taken_out_again() -> None:
    """A handler is the sound one again when the check has looked, even if it breaks down."""
    before = Transfers._release
    bug = BY_NAME["D4"]
    with suppress(KeyError), bug.injection.planted():
        assert Transfers._release is not before
        raise KeyError

    assert Transfers._release is before
    assert examine(bug).is_good
    assert Transfers._release is before


def test_no_fault_changes_nothing() -> None:
    """The control has the declaration, the rules and the core as they are."""
    assert HEALTHY.declaration() is SCHEDULER
    assert HEALTHY.profile() == Profile()
    assert callable(HEALTHY.core()["grow"])


def test_each_bug_and_each_control_has_a_process() -> None:
    """Two bugs and the controls of their checks come back from processes of their own."""
    bugs = table.chosen("core")
    findings = list(run(bugs, 2))

    assert {(item.name, item.is_control) for item in findings} == set(jobs_of(bugs))
    assert all(item.is_good for item in findings), findings


def test_a_check_that_breaks_down_has_caught_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a check itself raises is reported, and does not pass for a catch."""

    def stumble(*_: object) -> Sighting:
        raise ZeroDivisionError("a fault in the check")

    monkeypatch.setattr(TransferFuzz, "look", stumble)
    found = perform(("D4", False))

    assert not found.is_good
    assert found.error == "ZeroDivisionError: a fault in the check"


def test_another_fault_than_expected_does_not_count() -> None:
    """A check that complains of something else has not recognised the bug."""
    sighting = Sighting("proof", ("drain keeps conservation",), 1, "row")

    assert BY_NAME["B1"].recognises(sighting) is None
    assert BY_NAME["D8"].recognises(sighting) == "drain keeps conservation"


def test_the_shortest_way_to_the_same_fault_is_kept() -> None:
    """Of several sightings of one kind the shortest stays; time for finding one is limited."""
    seen = Sightings()
    seen.note(Sighting("fuzz", ("Kind: a",), 9, "calls"))
    seen.note(Sighting("fuzz", ("Other: b",), 2, "calls"))
    seen.note(Sighting("fuzz", ("Kind: c",), 5, "calls"))

    assert seen.shortest is not None
    assert (seen.shortest.length, seen.shortest.claims) == (5, ("Kind: c",))
    seen.start -= 1_000
    with pytest.raises(EnoughError):
        seen.note(Sighting("fuzz", ("Kind: d",), 4, "calls"))


# --- The report -----------------------------------------------------------------------------------


def test_totals_count_what_was_caught_and_what_was_silent() -> None:
    """A bug that is not caught, and a control that is not silent, have a line each."""
    sighting = Sighting("proof", ("drain keeps touched_is_protected",), 1, "row", seconds=7.0)
    findings = [
        Finding("B1", False, sighting, sighting.claims[0]),
        Finding("D8", False, sighting),
        Finding("D6", False),
        Finding("proofs of drain", True),
        Finding("proofs of grow", True, sighting),
    ]
    result = report.Report(findings, UNPLANTED, 12.0)

    assert not result.is_good
    assert report.totals(result).startswith(
        "1 of 3 bugs caught, B1, D8 in more than 5 s; 1 of 2 controls silent;"
    )
    assert report.faults(result) == [
        "D6: NOT CAUGHT",
        "D8: caught as something else: drain keeps touched_is_protected",
        "control proofs of grow: expected nothing; saw drain keeps touched_is_protected",
    ]


def test_everything_is_in_the_data() -> None:
    """JSON has each bug with what was planted and seen, the controls, and what is not planted."""
    sighting = Sighting("proof", ("drain keeps touched_is_protected",), 1, "row", seconds=0.5)
    findings = [Finding("B1", False, sighting, sighting.claims[0]), Finding("check", True)]
    form = report.to_json(report.Report(findings, UNPLANTED[:1], 1.0))

    (bug,) = form["bugs"]
    assert bug["reports"] == ["vllm#45357", "ascend#14055"]
    assert bug["where"] == "spec"
    assert (bug["property"], bug["claim"]) == ("S4", "drain keeps touched_is_protected")
    assert (bug["seconds"], bug["length"], bug["unit"]) == (0.5, 1, "row")
    assert form["controls"] == [{"check": "check", "silent": True, "seconds": 0.0, "claims": []}]
    assert form["not_planted"][0]["name"] == UNPLANTED[0].name
