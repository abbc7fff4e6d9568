"""Where rules come from: the table has every rule, row and test, and markers are read as text."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvproof.cli.application import application
from kvproof.spec import marked_tests as reader
from kvproof.spec.marked_tests import folder_of_tests, marked_tests, markers
from kvproof.spec.reports import REPORTS, cited
from kvproof.spec.rules import ITEMS
from kvproof.spec.scheduler import SCHEDULER
from kvproof.spec.sources import NO_TESTS, claims, rules, sources, sources_table

TABLE = sources_table(SCHEDULER, folder_of_tests())


def cells(name: str, document: str = TABLE) -> list[str]:
    """Return the cells of the line of one rule."""
    (line,) = [line for line in document.splitlines() if line.startswith(f"| {name} |")]
    return re.split(r"(?<!\\) \| ", line.strip("| "))


def test_every_rule_has_a_line() -> None:
    """The first table has the sixteen items and the second the reports, in their order."""
    names = re.findall(r"^\| (\d+|\S+#\d+) \|", TABLE, flags=re.MULTILINE)

    assert names == [*(rule.name for rule in ITEMS), *(rule.name for rule in REPORTS)]


def test_every_line_is_as_wide_as_its_head() -> None:
    """Each line has the rule, its sentence, rows, properties and tests, and no cell is empty."""
    lines = [line for line in TABLE.splitlines() if line.startswith("| ")]

    assert {len(re.split(r"(?<!\\)\|", line)) for line in lines} == {7}
    assert not any(re.search(r"\|\s*\|", line) for line in lines)


def test_every_row_is_present() -> None:
    """Each transition, invariant, measure and progress is in the table, claims by property."""
    for row in SCHEDULER.transitions:
        assert f"`{row.name}`" in TABLE
    for claim in claims(SCHEDULER).values():
        assert re.search(rf"{claim.property}: (`\w+`, )*`{claim.name}`", TABLE), claim.name


def test_a_line_leads_from_the_rule_to_the_tests() -> None:
    """The line of a report has its sentence, the rows that cite it, what states it, and tests."""
    report, sentence, rows, stated, tests = cells("vllm#39734")

    assert report in {rule.name for rule in REPORTS}
    assert sentence.endswith("blocked it.")
    assert rows == "`arrive`, `arrive_unchecked`"
    assert stated == "V2: `fits_an_empty_pool`"
    assert "`tests/verify/test_public_reports.py::test_the_fault_of_a_report_is_refuted`" in tests


def test_the_table_is_the_same_each_time() -> None:
    """Rows, properties and tests stand in a fixed order."""
    folder = folder_of_tests()

    assert sources_table(SCHEDULER, folder) == sources_table(SCHEDULER, folder)


def test_without_the_tests_the_column_says_so() -> None:
    """Where only the wheel is installed there are no tests to name, and nothing is invented."""
    document = sources_table(SCHEDULER, None)

    assert all(cells(rule.name, document)[-1] == NO_TESTS for rule in rules(SCHEDULER))
    assert "test_" not in document


def test_rows_of_a_report_are_those_that_cite_it() -> None:
    """No list of rows is kept by hand for a report: the rows themselves name it."""
    for source in sources(SCHEDULER, {}):
        for name in source.rule.rows if "#" in source.rule.name else ():
            assert source.rule.name in cited(SCHEDULER.transition[name].rule)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("vLLM Scheduler.schedule", ()),
        ("vLLM KVCacheManager.touch; vllm#11565", ("vllm#11565",)),
        ("fence of vllm#45357; trt#1; vllm#45357", ("vllm#45357", "trt#1")),
        ("vllm-project/vllm-omni#6053", ("vllm-project/vllm-omni#6053",)),
    ],
)
def test_reports_are_found_in_a_source(text: str, found: tuple[str, ...]) -> None:
    """A source names functions and reports; each report counts once."""
    assert cited(text) == found


FILE = """
import pytest
pytestmark = pytest.mark.rule("14")
@pytest.mark.rule("1", "vllm#7")
def test_one(): ...
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.rule("2"))])
def test_two(x): ...
@pytest.mark.rule("3")
class TestThree:
    @pytest.mark.rule("4")
    def test_four(self): ...
"""


def test_markers_are_read_from_the_text() -> None:
    """A marker belongs to the test, the class or the file that it stands on."""
    found = list(markers(FILE, "t.py"))

    assert sorted(found) == sorted(
        [
            ("14", "t.py"),
            ("1", "t.py::test_one"),
            ("vllm#7", "t.py::test_one"),
            ("2", "t.py::test_two"),
            ("3", "t.py::TestThree"),
            ("4", "t.py::TestThree::test_four"),
        ]
    )


def test_files_are_read_in_order_and_none_is_run(tmp_path: Path) -> None:
    """Tests of a rule come by file name, each once, and a file that could not run is no matter."""
    folder = tmp_path / "tests"
    (folder / "inner").mkdir(parents=True)
    body = 'import nothing_of_that_name\n@pytest.mark.rule("1")\ndef test_it(): ...\n'
    (folder / "test_b.py").write_text(body * 2, encoding="utf-8")
    (folder / "inner" / "test_a.py").write_text(body, encoding="utf-8")
    (folder / "helper.py").write_text(body, encoding="utf-8")

    found = marked_tests(folder)

    assert found == {"1": ("tests/inner/test_a.py::test_it", "tests/test_b.py::test_it")}


@pytest.mark.parametrize("call", ["rule()", "rule(NAME)", 'rule("1", NAME)', 'rule(name="1")'])
def test_a_marker_that_cannot_be_read_is_refused(call: str) -> None:
    """A marker without a written rule is refused with its file, its line and what to write."""
    with pytest.raises(ValueError, match=r"t\.py, line 1: saw pytest\.mark\.rule\(.*written out"):
        list(markers(f"pytestmark = pytest.mark.{call}", "t.py"))


def test_the_command_prints_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """`kvproof spec --sources` prints the table; in a wheel it does so without the tests."""
    runner = CliRunner()

    table = sources_table(SCHEDULER, folder_of_tests())
    assert runner.invoke(application, ["spec", "--sources"]).stdout == table + "\n"
    assert runner.invoke(application, ["spec", "--sources", "--format", "dot"]).exit_code == 2
    monkeypatch.setattr(reader, "folder_of_tests", lambda: None)
    assert NO_TESTS in runner.invoke(application, ["spec", "--sources"]).stdout
