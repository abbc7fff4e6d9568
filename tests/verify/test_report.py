"""The report says what was proved, what was not, and what nobody has stated yet."""

import io

import pytest
from rich.console import Console

from kvproof.spec.digest import digest
from kvproof.spec.properties import PROPERTIES
from kvproof.spec.scheduler import SCHEDULER
from kvproof.verify.report import Report, exit_code, matrix, show, to_json, totals, unstated
from kvproof.verify.verdict import Counterexample, Method, Result, Verdict

PROVED, REFUTED, UNKNOWN = Verdict


def result(verdict: Verdict, prop: str = "S1", method: Method = Method.INDUCTION) -> Result:
    """Return an obligation that ended in this way."""
    reason = None if verdict is PROVED else Counterexample("one block is [lost]")
    return Result(f"grow keeps {prop}", prop, "grow", method, verdict, 0.25, reason)


def printed(*results: Result, width: int = 80, complete: bool = True) -> str:
    """Return the report on some results as it is printed."""
    console = Console(file=io.StringIO(), width=width)
    show(console, Report(SCHEDULER, results, 1.25, complete))
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ((PROVED, PROVED), 0),
        ((PROVED, REFUTED), 1),
        ((PROVED, UNKNOWN), 3),
        ((UNKNOWN, REFUTED, PROVED), 1),
        ((UNKNOWN,), 3),
        ((), 3),
    ],
)
def test_only_what_is_proved_passes(verdicts: tuple[Verdict, ...], code: int) -> None:
    """A refutation is 1, whatever else there is; something unknown or nothing at all is 3."""
    assert exit_code([result(verdict) for verdict in verdicts]) == code


def test_cells_count_each_verdict() -> None:
    """A cell holds the proved, refuted and unknown obligations of a property by a method."""
    results = [result(PROVED), result(PROVED), result(REFUTED), result(UNKNOWN)]
    other = result(PROVED, "S2", Method.WITNESS)
    lines = printed(*results, other).splitlines()

    assert [line.split() for line in lines[2:6]] == [
        ["S1", "2", "-"],
        ["1", "✗"],
        ["1", "?"],
        ["S2", "-", "1"],
    ]


def test_properties_stand_in_the_order_of_the_catalogue() -> None:
    """Rows are ordered as the properties are; obligations of no property come last, as `all`."""
    table = matrix(
        Report(SCHEDULER, [result(PROVED, name) for name in ("", "V1", "S10", "S2", "N1")])
    )

    assert list(table.columns[0].cells) == ["S2", "S10", "N1", "V1", "all"]


def test_a_full_matrix_fits_a_terminal() -> None:
    """With every property and every method no line is wider than 80 characters or broken."""
    everything = [result(PROVED, item.name, method) for item in PROPERTIES for method in Method]

    lines = printed(*everything * 100).splitlines()

    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    assert next(line.split() for line in lines if line.startswith("S1 ")) == ["S1"] + ["100"] * len(
        Method
    )


def test_no_blank_is_left_unexplained() -> None:
    """Each property without an obligation has a line that says where it is shown."""
    lines = unstated(Report(SCHEDULER, [result(PROVED)]))

    assert [line.split()[0] for line in lines] == [p.name for p in PROPERTIES if p.name != "S1"]
    assert "V11 comes with data parallelism" in lines
    assert all(len(line.split()) > 1 for line in lines)


def test_a_part_of_a_run_does_not_say_what_is_missing() -> None:
    """When only some obligations were asked for, the others are not called unstated."""
    assert unstated(Report(SCHEDULER, [result(PROVED)], complete=False)) == []


@pytest.mark.parametrize("verdict", [REFUTED, UNKNOWN])
def test_what_is_not_proved_is_printed_with_its_reason(verdict: Verdict) -> None:
    """A refuted or unknown obligation is named, and its reason is printed as it is."""
    text = printed(result(PROVED), result(verdict, "S2"))

    assert f"{verdict}: S2 grow keeps S2" in text
    assert "one block is [lost]" in text
    assert f"1 {verdict}" in text


def test_an_unknown_without_a_reason_says_that_no_answer_came() -> None:
    """A solver that gave up is reported as such."""
    silent = Result("grow keeps S1", "S1", "grow", Method.INDUCTION, UNKNOWN)

    assert "no answer in time" in printed(silent)


def test_totals_are_one_line() -> None:
    """The last line counts all obligations by verdict and says how long it took."""
    report = Report(SCHEDULER, [result(PROVED), result(UNKNOWN)], 1.25)

    assert totals(report).plain == "2 obligations: 1 proved, 0 refuted, 1 unknown in 1.2 s"
    assert printed(*report.results).splitlines()[-1] == totals(report).plain


def test_json_holds_each_obligation() -> None:
    """The JSON form lists all obligations, and says of which declaration they are."""
    form = to_json(Report(SCHEDULER, [result(PROVED), result(REFUTED)], 1.25))

    assert form["obligations"][1] == {
        "name": "grow keeps S1",
        "property": "S1",
        "row": "grow",
        "method": "induction",
        "verdict": "refuted",
        "seconds": 0.25,
    }
    assert form["declaration"] == digest(SCHEDULER)
    assert form["summary"] == {"proved": 1, "refuted": 1, "unknown": 0, "seconds": 1.25}
