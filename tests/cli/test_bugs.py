"""`kvproof bugs`: what it prints, what it writes, and what it exits with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvproof.cli.application import application
from kvproof.verify.bugs import examine as examine_module
from kvproof.verify.bugs.bug import Bug
from kvproof.verify.bugs.examine import Finding, jobs_of, perform
from kvproof.verify.bugs.sighting import Sighting


def invoke(*arguments: str | Path) -> Result:
    """Return what the command line does with these arguments."""
    return CliRunner().invoke(application, ["bugs", *map(str, arguments)], env={"COLUMNS": "160"})


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything happen here, so that no process has to be started."""

    def run(bugs: Sequence[Bug], processes: int) -> Iterator[Finding]:
        return map(perform, jobs_of(bugs))

    monkeypatch.setattr(examine_module, "run", run)


def test_bugs_prints_what_was_planted_and_what_caught_it(in_this_process: None) -> None:
    """Each job is a line; then come the table, and the totals; all caught is 0."""
    result = invoke("--only", "D6")

    assert result.exit_code == 0, result.stdout
    assert "[1/2] control translation of grow: silent" in result.stdout
    assert "[2/2] D6: caught" in result.stdout
    assert "vllm#24228" in result.stdout
    assert "S7 grow is translated" in result.stdout
    assert "1 of 1 bugs caught; 1 of 1 controls silent" in result.stdout


def test_bugs_writes_json(in_this_process: None, tmp_path: Path) -> None:
    """The file has everything that the table has."""
    invoke("--only", "D6", "--json", tmp_path / "out.json")

    form = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert [bug["name"] for bug in form["bugs"]] == ["D6"]
    assert form["bugs"][0]["caught"] is True
    assert form["controls"][0]["silent"] is True


def test_bugs_exits_with_1_if_one_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug that nothing has caught, and a control that is not silent, are named at the end."""
    loud = Sighting("proof", ("grow keeps conservation",), 1, "row")

    def run(bugs: Sequence[Bug], processes: int) -> Iterator[Finding]:
        yield Finding("translation of grow", True, loud)
        yield Finding("D6", False)

    monkeypatch.setattr(examine_module, "run", run)
    result = invoke("--only", "D6")

    assert result.exit_code == 1
    assert "D6: NOT CAUGHT" in result.stdout
    assert "control translation of grow: expected nothing; saw grow keeps" in result.stdout
    assert "0 of 1 bugs caught; 0 of 1 controls silent" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "Z99"), "is no bug"),
        (("--jobs", "0"), "--jobs"),
        (("--json", Path("no such folder") / "out.json"), "make it first"),
    ],
)
def test_bugs_refuses_wrong_usage(arguments: tuple[str | Path, ...], message: str) -> None:
    """Wrong usage exits with 2 and says what was wrong."""
    result = invoke(*arguments)

    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
