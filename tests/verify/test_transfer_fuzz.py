"""Random workloads with transfers that fail, come late, twice or never: everybody comes to an end.

Invariants are checked after each call, a shadow of the KV memory after each accepted token, and the
blocks at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings

from kvproof.runtime.explanation import Doing, Kind, Outlook
from kvproof.runtime.profile import Profile
from kvproof.verify import outcome as outcome_module
from kvproof.verify.difference import Difference
from kvproof.verify.explanation_claims import check_explanations
from kvproof.verify.outcome import Drain, Outcome, run_to_end
from kvproof.verify.recording import Recording
from kvproof.verify.transfer_workloads import ENDS, NoisyConnector, seen, workloads

Call = Callable[[Drain, int], Difference | None]


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
