"""Transfers beside drafts, items, grammars, sessions, shared prefixes and steps in flight."""

from collections import Counter
from typing import Any

import pytest

from kvproof.runtime import StepOutput
from kvproof.runtime.step_results import StepResults
from kvproof.runtime.transfers import Transfers
from kvproof.verify.bugs.unreported_handlers import parks_failed_sessions
from kvproof.verify.mixed_run import MixedError, MixedRun

SEEDS = 48
GROUPS = 6


@pytest.mark.rule("9", "10", "11")
@pytest.mark.parametrize("group", range(GROUPS))
def test_everything_at_once_comes_to_an_end(group: int) -> None:
    """Nothing is raised, everybody ends, blocks come back, and no token is of foreign KV."""
    counts = Counter[str]()
    for seed in range(group, SEEDS, GROUPS):
        run = MixedRun.of(seed)
        run.run(120)
        counts += run.counts
    happened = ("plain", "session", "grammar", "items", "loads", "loads at once", "failed blocks")
    for what in (*happened, "received", "sent", "asked again", "preempted", "aborted", "resets"):
        assert counts[what], what


def run_all(seeds: int) -> None:
    """Make the first runs."""
    for seed in range(seeds):
        MixedRun.of(seed).run(120)


def test_a_row_that_is_never_left_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session whose load failed and that is taken for a parked one ends a run."""
    faulty = parks_failed_sessions(StepResults.ended_rows)
    monkeypatch.setattr(StepResults, "ended_rows", faulty)
    with pytest.raises(MixedError, match="left are"):
        run_all(12)


def test_kv_that_was_not_loaded_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that takes no note of failed blocks ends a run."""
    monkeypatch.setattr(Transfers, "note_failures", lambda transfers, report: [])
    with pytest.raises(MixedError, match=r"foreign KV|ended with an error"):
        run_all(12)


def test_a_table_that_the_worker_does_not_know_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that tells a resumed request only its last block ends a run."""
    sound: Any = vars(StepOutput)["new_block_ids"].func

    def last_only(output: StepOutput) -> dict[str, list[int]]:
        told: dict[str, list[int]] = sound(output)
        return {n: b[-1:] if n in output.resumed_req_ids else b for n, b in told.items()}

    monkeypatch.setattr(StepOutput, "new_block_ids", property(last_only))
    with pytest.raises(AssertionError, match="the worker has"):
        run_all(12)
