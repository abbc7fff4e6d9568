"""Running recorded workloads until nothing moves: where the reference stops, and why."""

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from kvproof.core import Status
from kvproof.runtime.demand import Demand, Quantity
from kvproof.runtime.explanation import Doing, Holder, Outlook
from kvproof.runtime.profile import Profile
from kvproof.verify.recording import Recording, read_recording
from kvproof.verify.stuck import Ending, Stand, run_until_stuck

RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "recordings"
STUCK = sorted(
    file for file in RECORDINGS.glob("*.jsonl.gz") if read_recording(file).header.verdict == "stuck"
)
VLLM = Profile.vllm_0_25_1()


def named(name: str) -> Recording:
    """Return a recording of the selection."""
    return read_recording(RECORDINGS / f"{name}.jsonl.gz")


def by_name(stand: Stand) -> dict[str, Any]:
    """Return the explanations of a stand by request."""
    return {explanation.request_id: explanation for explanation in stand.explanations}


@pytest.mark.rule("vllm#57841", "vllm#45388")
def test_the_fcfs_strand_is_explained() -> None:
    """A waits for blocks that B holds; B could go on, but the pass stops at A."""
    stand = run_until_stuck(named("demo-bad-strand-fcfs"), VLLM)
    found = by_name(stand)

    assert (stand.ending, stand.step) == (Ending.FROZEN, 3)
    rule = "scheduler_reserve_full_isl"
    assert found["A"].demand == Demand(rule, Quantity.BLOCKS, needed=8, free=4)
    assert found["A"].holders == (Holder("B", Doing.LANDED, blocks=10, alone=10),)
    assert (found["B"].behind, found["B"].is_held_up) == ("A", True)
    assert all(explanation.is_frozen for explanation in stand.explanations)


@pytest.mark.rule("vllm#45406")
def test_the_priority_strand_is_explained() -> None:
    """H is refused for L's reservation alone, with 16 blocks free; L stands behind H."""
    stand = run_until_stuck(named("demo-bad-strand-priority"), VLLM)
    found = by_name(stand)

    assert (stand.ending, stand.step) == (Ending.FROZEN, 4)
    demand = Demand("await_load_regardless", Quantity.BLOCKS, needed=13, free=16, reserved=4)
    assert found["H"].demand == demand
    assert found["H"].holders == (Holder("L", Doing.LANDED, blocks=2, alone=2, reserved=4),)
    assert (found["L"].status, found["L"].behind) == (Status.WAITING_FOR_REMOTE_KVS, "H")


@pytest.mark.parametrize("file", STUCK, ids=lambda file: file.name.partition(".")[0])
def test_stuck_recordings_are_explained_and_drain_under_safe_rules(file: Path) -> None:
    """Each is frozen or goes in circles under the reference's rules, and drains under the safe."""
    recording = read_recording(file)
    stand = run_until_stuck(recording, VLLM)

    assert stand.ending in (Ending.FROZEN, Ending.CIRCLING)
    assert stand.step < len(recording.steps)
    last = recording.steps[stand.step - 1].updated
    assert {e.request_id for e in stand.explanations} == set(last.status)
    assert all(e.demand is not None and e.demand.shortage > 0 for e in stand.explanations)
    assert all(e.is_frozen == (stand.ending is Ending.FROZEN) for e in stand.explanations)
    safe = run_until_stuck(recording, Profile())
    assert (safe.ending, safe.explanations, safe.faults) == (Ending.DRAINED, (), ())


def test_a_run_stops_where_it_is_told() -> None:
    """After the step that was asked for everybody who is left is explained."""
    recording = named("demo-preempt")
    stand = run_until_stuck(recording, VLLM, last=5)

    assert (stand.ending, stand.step) == (Ending.STOPPED, 5)
    assert set(by_name(stand)) == set(recording.steps[4].updated.status)
    assert any(e.outlook is Outlook.SCHEDULED for e in stand.explanations)


def test_a_circle_is_told_where_it_takes_back() -> None:
    """A request that fills the pool beside a loaded one preempts itself, again and again.

    What stands in its way is said where that comes next: one block, which the loaded one has.
    """
    stand = run_until_stuck(named("asyncconn-05123"), VLLM)
    found = by_name(stand)

    assert (stand.ending, stand.period) == (Ending.CIRCLING, 2)
    assert found["r3"].outlook is Outlook.PREEMPTED
    assert found["r3"].demand == Demand("schedule", Quantity.BLOCKS, needed=1, free=0)
    assert found["r3"].holders == (Holder("r5", Doing.LANDED, blocks=4, alone=4),)
    own = Demand("admit_landed_chunk", Quantity.BLOCKS, needed=5, free=0, there=4)
    assert (found["r5"].behind, found["r5"].own) == ("r3", own)


def test_foreign_kv_is_a_fault_on_the_way() -> None:
    """A recording that reads foreign KV is run anew, and each such token is named."""
    stand = run_until_stuck(named("demo-bad-poison-priority"), VLLM)

    assert stand.ending is Ending.DRAINED
    assert {fault.what for fault in stand.faults} == {"KV of A"}


def test_a_decision_that_differs_ends_the_run() -> None:
    """A recording that is not of these rules is not explained as if it were."""
    recording = named("demo-preempt")
    first = recording.steps[0]
    assert first.decision is not None
    other = evolve(first, decision=evolve(first.decision, preempted=("nobody",)))
    stand = run_until_stuck(Recording(recording.header, (other, *recording.steps[1:])), VLLM)

    assert (stand.ending, stand.step) == (Ending.FAULTY, 1)
    assert stand.faults[0].what == "preempted, as scheduled"
