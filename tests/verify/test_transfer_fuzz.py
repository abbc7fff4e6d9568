"""Random workloads with transfers that fail, come late, twice or never: everybody comes to an end.

Invariants are checked after each call, a shadow of the KV memory after each accepted token, and the
blocks at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from kvproof.runtime import Request, SchedulerConfig
from kvproof.runtime.connector import TransferReport
from kvproof.runtime.explanation import Doing, Kind, Outlook
from kvproof.runtime.profile import Profile
from kvproof.verify import outcome as outcome_module
from kvproof.verify.difference import Difference
from kvproof.verify.explanation_claims import check_explanations
from kvproof.verify.outcome import Drain, Outcome, run_to_end
from kvproof.verify.recorded_connector import RemoteKV
from kvproof.verify.recording import Arrival, Header, Recording
from kvproof.verify.simulated_connector import SimulatedConnector

ENDS = ("received", "failed blocks", "sent", "lost")
seen: Counter[str] = Counter()
Call = Callable[[Drain, int], Difference | None]


class NoisyConnector(SimulatedConnector):
    """A connector that repeats ends, makes some up, and loses every fifth request's loads."""

    def poll_of(self, step: int) -> TransferReport:
        """Return what is due, and noise."""
        report = super().poll_of(step)
        seen["received"] += len(report.received)
        seen["failed blocks"] += len(report.failed_blocks)
        seen["sent"] += len(report.sent)
        lost = {name for name in report.received if sum(name.encode()) % 5 == 0}
        seen["lost"] += len(lost)
        again = {name for name in self._loaded if name not in self._due()}
        return evolve(
            report,
            received=(report.received - lost) | again | {"nobody"},
            sent=report.sent | {"nobody"},
            lost=lost | {"nobody"},
        )

    def _due(self) -> set[str]:
        return {load.request_id for _, load in self._loads}


@st.composite
def remotes(draw: st.DrawFn, prompt: int) -> RemoteKV:
    """Return what can be loaded of a prompt, and what goes wrong."""
    return RemoteKV(
        tokens=draw(st.sampled_from((0, prompt, draw(st.integers(0, prompt))))),
        asynchronous=draw(st.booleans()),
        unknown=draw(st.sampled_from((0, 0, 1, 3))),
        delay=draw(st.integers(0, 4)),
        failed_places=tuple(draw(st.lists(st.integers(0, 4), max_size=2))),
        send_delay=draw(st.sampled_from((None, None, 0, 3))),
    )


@st.composite
def arrivals(draw: st.DrawFn, number: int) -> Arrival:
    """Return a request, when it comes, and when it is aborted if it is."""
    prompt = draw(st.integers(1, 14))
    stem = draw(st.sampled_from((0, 100 * number)))
    request = Request(
        f"r{number}",
        tuple(range(stem + 10, stem + 10 + prompt)),
        draw(st.integers(1, 6)),
        priority=draw(st.integers(0, 2)),
        arrival_time=float(number),
    )
    before, during = (draw(st.sampled_from((None, None, None, 2, 5, 9))) for _ in range(2))
    return Arrival(
        request=request,
        step=draw(st.integers(0, 6)),
        remote=draw(remotes(prompt)),
        abort_before=before,
        abort_during=during,
    )


@st.composite
def workloads(draw: st.DrawFn) -> Recording:
    """Return a workload that nobody has recorded."""
    limits = SchedulerConfig(
        num_blocks=draw(st.integers(11, 16)),
        block_size=2,
        max_num_seqs=draw(st.integers(1, 4)),
        max_num_batched_tokens=draw(st.integers(3, 16)),
        max_model_len=20,
        max_steps_in_flight=draw(st.integers(1, 3)),
        policy=draw(st.sampled_from(("fcfs", "priority"))),
        enable_prefix_caching=draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from((0, 0, 2))),
        watermark=draw(st.sampled_from((0.0, 0.1))),
        kv_load_failure_policy=draw(st.sampled_from(("recompute", "fail"))),
    )
    count = draw(st.integers(1, 6))
    header = Header(
        path=Path("drawn"),
        made_by="this test",
        limits=limits,
        has_connector=True,
        workload=tuple(draw(arrivals(number)) for number in range(count)),
        throttle=draw(st.sampled_from(("", "", "0111"))),
        draft_acceptance=0.0,
        seed=0,
        verdict="",
    )
    return Recording(header, ())


def fault(recording: Recording, profile: Profile) -> Difference | None:
    """Return what goes wrong in a run to the end, if anything does."""
    return next((found for found in run_to_end(recording, profile, Outcome()) if found), None)


CALM: Any = settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)


@pytest.mark.rule("9", "10", "11")
def test_everybody_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever transfers do, requests end, blocks come back, and no token is of foreign KV."""
    monkeypatch.setattr(outcome_module, "SimulatedConnector", NoisyConnector)
    seen.clear()

    def run(recording: Recording) -> None:
        assert fault(recording, Profile()) is None

    CALM(seed(1)(given(workloads())(run)))()
    assert {what for what in ENDS if seen[what] >= 5} == set(ENDS)


@pytest.mark.rule("vllm#53130")
def test_whoever_waits_for_a_transfer_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between all calls every request has an explanation that changes nothing, and none is frozen.

    The watchdog never fires, whatever transfers do.
    """
    said = Counter[str]()

    def explained(call: Call) -> Call:
        def watched(drain: Drain, step: int) -> Difference | None:
            for explanation in check_explanations(drain.run.scheduler):
                said[explanation.outlook] += 1
                said.update(holder.doing for holder in explanation.holders)
                said.update(event.kind for event in explanation.events)
            assert drain.run.scheduler.statistics().num_freezes == 0
            return call(drain, step)

        return watched

    def run(recording: Recording) -> None:
        assert fault(recording, Profile()) is None

    monkeypatch.setattr(outcome_module, "SimulatedConnector", NoisyConnector)
    for call in ("_step", "_account"):
        monkeypatch.setattr(Drain, call, explained(getattr(Drain, call)))
    settings(CALM, max_examples=40)(seed(1)(given(workloads())(run)))()
    for what in (Outlook.LOADING, Doing.RUNS, Kind.LOADED, Kind.ANSWER):
        assert said[what] >= 5, what


def test_the_rules_of_the_reference_are_found_out() -> None:
    """The same workloads find a run that never ends, or foreign KV, under vLLM's rules."""

    def run(recording: Recording) -> None:
        found = fault(recording, Profile.vllm_0_25_1())
        assert found is None or not (found.what == "end" or found.what.startswith("KV of"))

    with pytest.raises(AssertionError):
        CALM(seed(2)(given(workloads())(run)))()
