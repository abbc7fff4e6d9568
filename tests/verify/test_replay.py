"""Replay: recordings of vLLM are decided over again alike, and any change is the first difference.

`tests/data/recordings/README.md` says what each recording is and how it was made.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from kvproof.runtime.free_queue import FreeQueue
from kvproof.runtime.profile import Profile
from kvproof.runtime.samples import Samples
from kvproof.runtime.scheduler import Scheduler
from kvproof.runtime.waiting_queue import FirstComeQueue
from kvproof.verify.difference import Difference, first_difference
from kvproof.verify.outcome import Outcome, changed_end, recorded_outcome, run_to_end
from kvproof.verify.recording import Recording, read_recording
from kvproof.verify.replay import FreeQueueOrder, replay
from kvproof.verify.step_record import Results

RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "recordings"
FILES = sorted(RECORDINGS.glob("*.jsonl.gz"))
VLLM = Profile.vllm_0_25_1()

Change = Callable[[list[dict[str, Any]]], None]


def named(name: str) -> Recording:
    """Return a recording of the selection."""
    return read_recording(RECORDINGS / f"{name}.jsonl.gz")


def compared(recording: Recording, profile: Profile = VLLM) -> Difference | None:
    """Return what differs first, if anything does."""
    return next((found for found in replay(recording, profile) if found is not None), None)


def drained(recording: Recording, profile: Profile | None = None) -> Difference | None:
    """Return what is wrong with the outcome, if anything is."""
    steps = run_to_end(recording, profile or Profile(), Outcome())
    return next((found for found in steps if found is not None), None)


def changed(folder: Path, name: str, change: Change) -> Recording:
    """Return a recording in which something has been changed."""
    data = gzip.decompress((RECORDINGS / f"{name}.jsonl.gz").read_bytes())
    lines = [json.loads(line) for line in data.splitlines()]
    change(lines)
    path = folder / "changed.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return read_recording(path)


# --- Identity -------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.partition(".")[0])
def test_recordings_are_decided_alike(file: Path) -> None:
    """Every step of every recording is identical under vLLM's rules, block ids included."""
    recording = read_recording(file)

    assert list(replay(recording, VLLM)) == [None] * len(recording.steps)


def test_the_selection_has_what_there_is_to_see() -> None:
    """Together the recordings have preemptions, hits, throttled steps, drafts, aborts and gaps."""
    recordings = [read_recording(file) for file in FILES]
    steps = [step for recording in recordings for step in recording.steps]
    decisions = [step.decision for step in steps if step.decision is not None]
    limits = [recording.header.limits for recording in recordings]
    arrivals = [arrival for recording in recordings for arrival in recording.header.workload]

    assert sum(len(decision.preempted) for decision in decisions) >= 40
    assert any(d.tokens_computed_before[name] for d in decisions for name in d.new)
    assert any(d.tokens_computed_before[name] for d in decisions for name in d.resumed)
    assert any(step.throttled for step in steps)
    assert any(step.updated.capacity_bound for step in steps)
    assert any(decision.drafts_scheduled for decision in decisions)
    assert any(arrival.abort_before is not None for arrival in arrivals)
    assert any(arrival.abort_during is not None for arrival in arrivals)
    assert len(decisions) < len(steps)
    assert {limit.policy for limit in limits} == {"fcfs", "priority"}
    assert {limit.watermark > 0 for limit in limits} == {True, False}
    assert {limit.scheduler_reserve_full_isl for limit in limits} == {True, False}


def test_each_recording_says_how_it_was_made() -> None:
    """The README lists exactly the files that are there, each with the command in its header."""
    text = (RECORDINGS / "README.md").read_text("utf-8")
    for file in FILES:
        assert f"| `{file.name}` | `{read_recording(file).header.made_by}` |" in text
    assert text.count(".jsonl.gz` |") == len(FILES)


# --- A change in the recording --------------------------------------------------------------------


def put(*keys: Any, value: Any) -> Change:
    """Return a change of one value, the keys leading to it."""

    def change(lines: list[dict[str, Any]]) -> None:
        target: Any = lines
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("keys", "value", "found"),
    [
        (("preempted",), ["r1"], ("preempted, as scheduled", "r1", "(none)")),
        (("finished",), ["r1"], ("finished, as scheduled", "r1", "(none)")),
        (("new",), ["r4"], ("new, as scheduled", "r4", "(none)")),
        (("resumed",), ["r1"], ("resumed, as scheduled", "r1", "(none)")),
        (("num_scheduled_tokens", "r1"), 2, ("tokens scheduled of r1, as scheduled", "2", "1")),
        (("spec",), {"r1": 1}, ("drafts scheduled of r1, as scheduled", "1", "(not there)")),
        (
            ("computed_at_schedule", "r1"),
            9,
            ("tokens computed before of r1, as scheduled", "9", "11"),
        ),
        (("new_block_ids", "r1"), [3], ("new blocks of r1, as scheduled", "3", "(none)")),
        (
            ("after_schedule", "running"),
            ["r0"],
            ("running, after schedule", "r0", "r0, r1, r2, r3"),
        ),
        (
            ("after_schedule", "capacity_bound"),
            False,
            ("capacity bound, after schedule", "false", "true"),
        ),
        (("outputs", "r1", "finish"), "stop", ("ended of r1, as updated", "stop", "(not there)")),
        (("after_update", "waiting"), [], ("waiting, after update", "(none)", "r4")),
        (("after_update", "free_blocks"), 3, ("free blocks, after update", "3", "0")),
        (
            ("after_update", "reqs", "r1", "status"),
            "WAITING",
            ("status of r1, after update", "WAITING", "RUNNING"),
        ),
        (
            ("after_update", "reqs", "r1", "computed"),
            3,
            ("tokens computed of r1, after update", "3", "12"),
        ),
        (
            ("after_update", "reqs", "r1", "tokens"),
            3,
            ("tokens known of r1, after update", "3", "13"),
        ),
        (
            ("after_update", "reqs", "r1", "preemptions"),
            1,
            ("preemptions of r1, after update", "1", "0"),
        ),
        (
            ("after_update", "reqs", "r1", "blocks"),
            [4, 9, 6],
            ("blocks of r1, after update", "4, 9, 6", "4, 5, 6"),
        ),
        (("free_list",), [7], ("free queue, after update", "7", "(none)")),
    ],
    ids=str,
)
def test_a_changed_recording_differs_where_it_was_changed(
    tmp_path: Path, keys: tuple[str, ...], value: Any, found: tuple[str, str, str]
) -> None:
    """Every field is compared: one changed value is the first difference, in its step."""
    recording = changed(tmp_path, "demo-preempt", put(3, *keys, value=value))

    assert compared(recording) == Difference(3, *found)


def test_the_order_of_the_batch_is_compared(tmp_path: Path) -> None:
    """Who stands where in the batch is a decision too."""

    def swap(lines: list[dict[str, Any]]) -> None:
        tokens = lines[3]["num_scheduled_tokens"]
        lines[3]["num_scheduled_tokens"] = dict(reversed(tokens.items()))

    found = compared(changed(tmp_path, "demo-preempt", swap))

    assert found is not None
    assert found.what == "order of the batch, as scheduled"


def test_a_longer_workload_differs(tmp_path: Path) -> None:
    """A request that the recording knows nothing of shows up in the first step that it changes."""
    extra = {"id": "r9", "prompt_token_ids": [9], "max_tokens": 1, "arrival_step": 1}
    found = compared(
        changed(tmp_path, "demo-prefix", lambda lines: lines[0]["workload"].append(extra))
    )

    assert found == Difference(1, "new, as scheduled", "r0", "r0, r9")


def test_what_the_runtime_refuses_is_a_difference(tmp_path: Path) -> None:
    """Samples that the step cannot have had are refused by the runtime, and reported with why."""
    found = compared(
        changed(tmp_path, "demo-preempt", put(3, "outputs", "r1", "tokens", value=[5, 6, 7]))
    )

    assert found is not None
    assert (found.step, found.what) == (3, "StepOrderError")
    assert "saw 3 tokens for 'r1', expected 1 to 1" in found.seen


# --- A change in the runtime ----------------------------------------------------------------------


def freed_blocks_change_places(patch: pytest.MonkeyPatch) -> None:
    """Reuse cached blocks first."""
    patch.setattr(FreeQueue, "put_last", FreeQueue.put_first)


def the_first_is_the_victim(patch: pytest.MonkeyPatch) -> None:
    """Preempt the oldest request."""
    patch.setattr("kvproof.runtime.scheduler.last_running", lambda view: int(view.rows[0]))


def the_most_urgent_is_the_victim(patch: pytest.MonkeyPatch) -> None:
    """Preempt the request that is visited first, not the least urgent."""
    patch.setattr("kvproof.runtime.scheduler.first_of_least_urgent", lambda view: int(view.rows[0]))


def victims_go_to_the_back(patch: pytest.MonkeyPatch) -> None:
    """Let a preempted request wait behind all others."""
    patch.setattr(FirstComeQueue, "put_back", FirstComeQueue.add)


def throttling_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """Run prefills in every step."""
    schedule = Scheduler.schedule
    patch.setattr(Scheduler, "schedule", lambda self, _: schedule(self, False))


def drafts_are_never_right(patch: pytest.MonkeyPatch) -> None:
    """Count only the first sample."""
    ragged = Samples.ragged
    patch.setattr(Samples, "ragged", lambda lists: ragged([tokens[:1] for tokens in lists]))


@pytest.mark.parametrize(
    ("recording", "seed", "what"),
    [
        ("fcfs-01010", freed_blocks_change_places, "free queue, from place 1, after update"),
        ("demo-preempt", the_first_is_the_victim, "preempted, as scheduled"),
        ("demo-priority", the_most_urgent_is_the_victim, "preempted, as scheduled"),
        ("demo-preempt", victims_go_to_the_back, "waiting, after schedule"),
        ("fcfs-01040", throttling_is_ignored, "tokens scheduled of r0, as scheduled"),
        ("demo-spec", drafts_are_never_right, "tokens accepted of r1, as updated"),
    ],
)
def test_a_seeded_fault_is_the_first_difference(
    monkeypatch: pytest.MonkeyPatch,
    recording: str,
    seed: Callable[[pytest.MonkeyPatch], None],
    what: str,
) -> None:
    """A rule of the runtime that is bent shows in the first step in which it decides."""
    assert compared(named(recording)) is None

    seed(monkeypatch)
    found = compared(named(recording))

    assert found is not None
    assert found.what == what


@pytest.mark.parametrize(
    ("rule", "recording"),
    [
        ("publishes_at_allocation", "demo-bad-poison-priority"),
        ("accepts_what_never_fits", "demo-preempt"),
        ("drafts_beyond_limit", "demo-spec"),
        ("skips_after_early_victim", "skipped-turn"),
        ("expects_dropped_samples", "demo-bad-async-load"),
    ],
)
def test_a_rule_of_the_profile_that_is_not_followed_differs(rule: str, recording: str) -> None:
    """The recordings hold the profile to its rules: with one of them off, a step differs."""
    changes: dict[str, Any] = {rule: False}

    found = compared(named(recording), evolve(VLLM, **changes))

    assert found is not None


# --- What a difference says -----------------------------------------------------------------------


def test_equal_records_do_not_differ() -> None:
    """Records with equal fields have no difference."""
    one = Results(tokens_accepted={"a": (1,)}, ended={})

    assert first_difference(1, "then", one, evolve(one)) is None


def test_a_long_list_is_shown_around_the_first_difference() -> None:
    """Of a long list, only a few items are shown, and the place of the first that differs."""
    one, other = FreeQueueOrder(tuple(range(100))), FreeQueueOrder((*range(50), 7, *range(51, 99)))

    found = first_difference(4, "then", one, other)

    assert found == Difference(
        4,
        "free queue, from place 51, then",
        "..., 47, 48, 49, 50, 51, 52, ...",
        "..., 47, 48, 49, 7, 51, 52, ...",
    )


def test_an_entry_that_is_missing_is_named() -> None:
    """A request that one side does not know is named, whichever side that is."""
    one, other = (
        Results(tokens_accepted={}, ended={"a": "stop"}),
        Results(tokens_accepted={}, ended={"b": "stop"}),
    )

    assert first_difference(1, "then", one, other) == Difference(
        1, "ended of a, then", "stop", "(not there)"
    )
    assert first_difference(1, "then", other, one) == Difference(
        1, "ended of a, then", "(not there)", "stop"
    )


# --- Outcomes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.partition(".")[0])
def test_the_safe_rules_end_alike(file: Path) -> None:
    """Under the default profile everybody ends with the recorded tokens, all blocks come back."""
    recording, outcome = read_recording(file), Outcome()

    assert [found for found in run_to_end(recording, Profile(), outcome) if found] == []
    assert outcome.refused == {}
    kept = {a.request.request_id for a in recording.header.workload if not a.is_aborted}
    recorded = recorded_outcome(recording)
    assert kept <= set(outcome.ended)
    alike = {name for name in kept if recorded.ended.get(name, "error") != "error"}
    assert {name: outcome.tokens[name] for name in alike} == {
        name: recorded.tokens[name] for name in alike
    }


@pytest.mark.rule("9")
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("demo-bad-strand-fcfs", "end"),
        ("demo-bad-strand-priority", "end"),
        ("conn-05465", "end"),
        ("demo-bad-async-load", "KV of R"),
        ("demo-bad-poison-load", "KV of R"),
        ("demo-bad-poison-priority", "KV of A"),
        ("asyncconn-05495", "KV of r2"),
    ],
)
def test_the_faults_of_the_reference_are_found(name: str, what: str) -> None:
    """Under vLLM's rules the same workloads freeze, or bring tokens of KV that nobody wrote."""
    found = drained(named(name), VLLM)

    assert found is not None
    assert found.what == what


def test_other_rules_have_outcomes_too() -> None:
    """Outcomes can be asked of vLLM's rules as well; our invariants are not checked then."""
    assert drained(named("demo-preempt"), VLLM) is None


def test_a_block_that_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that drops a block breaks an invariant in the step in which it does."""
    put_first = FreeQueue.put_first
    monkeypatch.setattr(FreeQueue, "put_first", lambda self, ids: put_first(self, ids[1:]))

    found = drained(named("demo-prefix"))

    assert found is not None
    assert found.what == "BrokenInvariant"
    assert "the free queue and the core disagree" in found.seen


def test_a_run_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that admits nobody is not stepped for ever; who is left is named."""
    monkeypatch.setattr("kvproof.runtime.scheduler.schedule_waiting", lambda books, plan: None)

    found = drained(named("demo-prefix"))

    assert found == Difference(
        201,
        "end",
        "everybody ends, as recorded in 10 steps",
        "running [], waiting ['r0', 'r1', 'r2', 'r3']",
    )


def test_a_request_that_ends_otherwise_is_named(tmp_path: Path) -> None:
    """A request with other tokens than were recorded is named, and how it ended."""

    def shorten(lines: list[dict[str, Any]]) -> None:
        lines[0]["workload"][2]["max_tokens"] = 5

    found = drained(changed(tmp_path, "demo-preempt", shorten))

    assert found is not None
    assert (found.what, found.expected, found.seen) == (
        "end of r2",
        "length after 12 tokens",
        "length after 5 tokens",
    )


def test_who_could_never_fit_is_refused(tmp_path: Path) -> None:
    """Under the default profile a request larger than the pool is refused, and the rest goes on."""
    giant = {"id": "r9", "prompt_token_ids": list(range(9, 80)), "max_tokens": 1}
    recording = changed(tmp_path, "demo-preempt", lambda lines: lines[0]["workload"].append(giant))
    outcome = Outcome()

    assert [found for found in run_to_end(recording, Profile(), outcome) if found] == []
    assert list(outcome.refused) == ["r9"]
    assert "71 tokens need 18 blocks" in outcome.refused["r9"]


def test_other_tokens_are_another_end() -> None:
    """A request that ends after as many tokens as recorded, but with others, is named."""
    recording = named("demo-prefix")
    recorded, outcome = recorded_outcome(recording), recorded_outcome(recording)
    assert changed_end(9, recording.header, recorded, outcome) is None

    outcome.tokens["r2"] = (*outcome.tokens["r2"][:-1], 5)

    found = changed_end(9, recording.header, recorded, outcome)
    assert found == Difference(9, "tokens of r2", "as recorded", "others")


def test_a_request_without_an_end_is_named() -> None:
    """A request that neither ended nor was refused or aborted is named."""
    recording = named("demo-prefix")
    recorded, outcome = recorded_outcome(recording), recorded_outcome(recording)
    del outcome.ended["r1"]

    found = changed_end(9, recording.header, recorded, outcome)

    assert found == Difference(9, "end of r1", "length after 4 tokens", "(none)")
