"""`kvproof replay`: what it prints, and what it exits with."""

import gzip
import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from kvproof.cli.application import application
from kvproof.cli.replay_files import summary, watch
from kvproof.runtime.free_queue import FreeQueue
from kvproof.runtime.profile import Profile

RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "recordings"
FILES = sorted(RECORDINGS.glob("*.jsonl.gz"))
PREEMPT, PREFIX = (RECORDINGS / f"demo-{name}.jsonl.gz" for name in ("preempt", "prefix"))


def invoke(*arguments: str | Path) -> Result:
    """Return what the command line does with these arguments after `replay`."""
    return CliRunner().invoke(application, ["replay", *map(str, arguments)])


def complaint(result: Result) -> str:
    """Return the message of a usage error as one line, without the box around it."""
    return re.sub(r"[│╭╮╰╯─\s]+", " ", result.stderr)


def changed(folder: Path, line: int, field: str, value: object) -> Path:
    """Write a recording with one value changed, and return its path."""
    lines = [json.loads(text) for text in gzip.decompress(PREEMPT.read_bytes()).splitlines()]
    (lines[0]["config"] if line == 0 else lines[line])[field] = value
    path = folder / "changed.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in lines), encoding="utf-8")
    return path


def test_identical_recordings_exit_with_0() -> None:
    """Each file has a line as it is done, and the last line counts what was compared."""
    result = invoke(*FILES)

    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len(lines) == len(FILES) + 1
    assert f"/{len(FILES)}] demo-preempt.jsonl.gz: identical, 27 steps, 5 requests" in result.stdout
    assert re.fullmatch(
        r"identical: \d+ recordings, [\d,]+ steps, \d+ requests in [\d.]+ s", lines[-1]
    )


def test_a_difference_exits_with_1(tmp_path: Path) -> None:
    """The first difference is a small table, and no file after it is looked at."""
    file = changed(tmp_path, 5, "new", ["r9"])

    result = invoke(PREFIX, file, PREEMPT)

    assert result.exit_code == 1
    assert "[2/3] changed.jsonl: differs in step 5" in result.stdout
    assert "[3/3]" not in result.stdout
    assert "identical:" not in result.stdout
    assert "first difference" in result.stdout
    rows = dict(re.findall(r"│ (\w+) +│ (.*?) +│", result.stdout))
    assert rows["step"] == "5"
    assert rows["what"] == "new, as scheduled"
    assert (rows["expected"], rows["seen"]) == ("r9", "(none)")
    assert "file" in rows


def test_a_fault_of_the_runtime_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that reuses cached blocks first is found out by the order of its free queue."""
    monkeypatch.setattr(FreeQueue, "put_last", FreeQueue.put_first)

    result = invoke(PREFIX)

    assert result.exit_code == 1
    assert "free queue, from place 1, after update" in result.stdout


@pytest.mark.parametrize(
    "options", [("--profile", "safe"), ("--profile", "safe", "--outcome")], ids=str
)
def test_outcomes_are_compared_without_steps(options: tuple[str, ...]) -> None:
    """The safe profile takes other steps; everybody ends as recorded and all blocks come back."""
    result = invoke(*options, *FILES)

    assert result.exit_code == 0, result.output
    assert "demo-bad-poison-priority.jsonl.gz: drained, 9 steps" in result.stdout
    assert re.search(r"^drained, all blocks back: \d+ recordings", result.stdout, re.MULTILINE)


def test_outcomes_of_the_reference_have_its_faults() -> None:
    """Under vLLM's rules a token is accepted that was computed from what nobody wrote."""
    result = invoke("--outcome", PREEMPT, RECORDINGS / "demo-bad-poison-priority.jsonl.gz")

    assert result.exit_code == 1
    assert "demo-preempt.jsonl.gz: drained, 26 steps" in result.stdout
    assert "KV of A" in result.stdout


def test_another_outcome_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workload that does not drain is shown in the same table."""
    monkeypatch.setattr("kvproof.runtime.scheduler.schedule_waiting", lambda books, plan: None)

    result = invoke("--profile", "safe", PREFIX)

    assert result.exit_code == 1
    assert re.search(r"expected +│ everybody ends, as recorded in 10 steps", result.stdout)


def test_a_request_that_could_never_fit_is_counted(tmp_path: Path) -> None:
    """Under the safe profile it is refused when it comes, and the output says how many were."""
    lines = [json.loads(text) for text in gzip.decompress(PREFIX.read_bytes()).splitlines()]
    lines[0]["workload"].append({"id": "r9", "prompt_token_ids": [9] * 200, "max_tokens": 1})
    lines[0]["verdict"] = "stuck"
    file = tmp_path / "giant.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    result = invoke("--profile", "safe", file)

    assert result.exit_code == 0, result.output
    assert "drained, 9 steps, 5 requests, 1 refused that could never fit" in result.stdout


# --- Wrong usage ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument 'FILE...'"),
        (("none.jsonl",), "none.jsonl: cannot be read to its end"),
        ((str(RECORDINGS),), "cannot be read to its end"),
        ((__file__,), ":1: expected a JSON object"),
        (("--profile", "vllm-9", str(PREEMPT)), "--profile"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...], message: str) -> None:
    """Wrong usage and files that are no recordings exit with 2 and say what was seen."""
    result = invoke(*arguments)

    assert result.exit_code == 2
    assert message in complaint(result)


def test_a_broken_step_exits_with_2(tmp_path: Path) -> None:
    """A file whose header is well and whose steps are not is refused when its turn comes."""
    result = invoke(PREFIX, changed(tmp_path, 7, "outputs", 3))

    assert result.exit_code == 2
    assert "[1/2] demo-prefix.jsonl.gz: identical" in result.stdout
    assert "8: outputs is 3; expected objects by request id" in complaint(result)


# --- Its parts ------------------------------------------------------------------------------------


def test_a_terminal_shows_a_bar() -> None:
    """Where someone watches there is a bar with the file and the step, and nothing stays of it."""
    text = StringIO()
    console = Console(file=text, force_terminal=True, width=110, color_system=None)

    replayed = watch(console, [PREEMPT, PREFIX], Profile.vllm_0_25_1(), by_outcome=False)

    assert "demo-prefix.jsonl.gz  step" in text.getvalue()
    assert "identical" not in text.getvalue()
    assert [item.steps for item in replayed] == [27, 10]
    assert summary(replayed) == "identical: 2 recordings, 37 steps, 9 requests"


def test_one_of_each_is_singular() -> None:
    """Counts read like a sentence."""
    console = Console(file=StringIO())
    replayed = watch(console, [PREEMPT], Profile.vllm_0_25_1(), by_outcome=False)

    assert summary(replayed) == "identical: 1 recording, 27 steps, 5 requests"
