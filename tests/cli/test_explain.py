"""`kvproof explain`: what it prints, and what it exits with."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvproof.cli.application import application

RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "recordings"
STRAND, PREEMPT, POISON = (
    RECORDINGS / f"demo-{name}.jsonl.gz"
    for name in ("bad-strand-fcfs", "preempt", "bad-poison-load")
)


def invoke(*arguments: str | Path) -> Result:
    """Return what the command line does with these arguments after `explain`."""
    return CliRunner().invoke(application, ["explain", *map(str, arguments)])


def complaint(result: Result) -> str:
    """Return the message of a usage error as one line, without the box around it."""
    return re.sub(r"[│╭╮╰╯─\s]+", " ", result.stderr)


@pytest.mark.rule("vllm#57841")
def test_a_freeze_exits_with_1_and_says_why() -> None:
    """A headline, and a paragraph for each request that is left."""
    result = invoke(STRAND)

    assert result.exit_code == 1, result.output
    assert result.stdout.splitlines() == [
        "demo-bad-strand-fcfs.jsonl.gz: frozen in step 3, 2 of 2 requests unfinished; nothing"
        " changes any more",
        "  A (WAITING, place 1 of skipped) is refused. scheduler_reserve_full_isl: 8 blocks needed,"
        " 4 free; 4 missing. B has 10 blocks and waits with what was loaded. Frozen: nothing ends"
        " this wait but the abort of A or B.",
        "  B (WAITING_FOR_REMOTE_KVS, place 2 of skipped) stands behind A, at which the pass stops."
        " A is refused by scheduler_reserve_full_isl: 8 blocks needed, 4 free; 4 missing. B has 10"
        " blocks and waits with what was loaded. Were B looked at first, it could go on at once."
        " Frozen: nothing ends this wait but the abort of B or A.",
    ]
    assert result.stderr == "", "the watchdog of a run that is watched logs nothing"


def test_under_safe_rules_it_drains() -> None:
    """The same workload comes to its end under the default, and the exit code is 0."""
    result = invoke(STRAND, "--profile", "safe")

    assert result.exit_code == 0, result.output
    assert re.fullmatch(r"demo-bad-strand-fcfs.jsonl.gz: drained in \d+ steps\n", result.stdout)


def test_one_request_and_one_step() -> None:
    """`--step` stops there, and `--request` picks one; who has ended says how."""
    result = invoke(PREEMPT, "--step", "5", "--request", "r1")

    assert result.exit_code == 0, result.output
    headline, paragraph = result.stdout.splitlines()
    assert headline.startswith("demo-preempt.jsonl.gz: after step 5, ")
    assert paragraph.startswith("  r1 (")
    ended = invoke(PREEMPT, "--request", "r1")
    assert re.search(r"^  r1: (length|stop) after \d+ tokens\.$", ended.stdout, re.MULTILINE)


def test_a_circle_exits_with_1() -> None:
    """A livelock has a headline of its own, with the steps of its circle."""
    result = invoke(RECORDINGS / "asyncconn-05123.jsonl.gz", "--request", "r3")

    assert result.exit_code == 1, result.output
    headline, paragraph = result.stdout.splitlines()
    assert headline.endswith(
        "requests unfinished; the same every 2 steps, and nobody gains a token"
    )
    assert "r3 (RUNNING, place 1 of running) is preempted in the next step. schedule: 1 block" in (
        paragraph
    )


def test_foreign_kv_is_shown() -> None:
    """A token that was computed from what nobody wrote is named with its step."""
    result = invoke(POISON, PREEMPT)

    assert result.exit_code == 0, result.output
    assert "  step 3: KV of R: expected its own, saw what nobody wrote" in result.stdout
    assert "demo-preempt.jsonl.gz: drained in 27 steps" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument 'FILE...'"),
        (("none.jsonl",), "none.jsonl: cannot be read to its end"),
        ((str(PREEMPT), "--request", "r99"), "has no 'r99'; it has r0, "),
        ((str(PREEMPT), "--step", "0"), "--step"),
        ((str(PREEMPT), "--profile", "vllm-9"), "--profile"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...], message: str) -> None:
    """Wrong usage and files that are no recordings exit with 2 and say what was seen."""
    result = invoke(*arguments)

    assert result.exit_code == 2
    assert message in complaint(result)
