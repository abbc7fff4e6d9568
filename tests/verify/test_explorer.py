"""The explorer of the real runtime finds what is there, and nothing else."""

import subprocess
import sys
from collections import Counter

import pytest
from attrs import evolve

from kvproof.runtime import Profile, loads
from kvproof.runtime.fences import Fences
from kvproof.verify.explorer import Kind, Scope, Shape, Transition, explore
from kvproof.verify.explorer.events import Schedule

LOADING = Shape(prompt=5, max_tokens=2, offers=(2, 4))
PLAIN = Shape(prompt=3, max_tokens=2, stops=True)
SMALL = Scope(requests=2, blocks=4, shapes=(PLAIN, LOADING), offers_again=False)


def kinds(scope: Scope, most_states: int | None = None) -> Counter[Kind]:
    """Explore and count what was found."""
    found = explore(scope, most_states=most_states).findings
    return Counter(finding.kind for finding in found)


def test_safe_profile_has_no_fault_within_small_bounds() -> None:
    """Under the safe profile every state is sound, and everybody ends."""
    result = explore(SMALL)
    assert result.is_complete
    assert not result.findings
    assert result.states > 500


@pytest.mark.parametrize("in_flight", [1, 2])
def test_synchronous_loads_that_always_fail_hold_nobody_up(in_flight: int) -> None:
    """Who ran on a load that failed is marked, so that a connector can be kept from it."""
    shapes = (PLAIN, Shape(prompt=3, max_tokens=2, offers=(2,), synchronous=True))
    scope = evolve(SMALL, shapes=shapes, blocks=3, in_flight=in_flight)
    result = explore(scope)
    assert result.is_complete
    assert not result.findings


@pytest.mark.rule("vllm#39734")
def test_reference_waits_for_ever_for_what_never_fits() -> None:
    """The shortest freeze of the reference is a prompt larger than the pool."""
    scope = Scope(requests=1, profile=Profile.vllm_0_25_1())
    first, *_ = explore(scope).findings
    assert (first.kind, first.length) == (Kind.FREEZE, 3)
    done = subprocess.run(
        [sys.executable, "-c", first.program], capture_output=True, text=True, check=False
    )
    assert "nobody gets a token" in done.stderr


def test_finds_a_fence_that_is_never_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that never come back are a freeze."""
    monkeypatch.setattr(Fences, "drain", lambda self: None)
    assert kinds(SMALL, most_states=100)[Kind.FREEZE]


def test_finds_a_broken_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that is said to be free and is not queued is found where it happens."""
    real = Fences._drain_one

    def drain_one(self: Fences, fence: int) -> None:
        real(self, fence)
        self._state.pool.free += 1

    monkeypatch.setattr(Fences, "_drain_one", drain_one)
    assert kinds(SMALL, most_states=100)[Kind.INVARIANT]


def test_finds_a_load_gate_that_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads that are admitted without looking at who else is loaded strand each other."""
    monkeypatch.setattr(loads, "_held_together", lambda books: 0)
    found = kinds(SMALL)
    assert found[Kind.FREEZE] + found[Kind.LIVELOCK]


def test_asks_checks_of_each_call() -> None:
    """A check sees the scheduler before and after each call, and what it says is a finding."""

    def nobody_is_admitted(transition: Transition) -> str | None:
        before, after = transition.before, transition.after
        more = len(after.running_request_ids()) > len(before.running_request_ids())
        is_step = isinstance(transition.event, Schedule)
        return "somebody is admitted" if more and is_step else None

    result = explore(SMALL, checks=[nobody_is_admitted])
    (finding,) = result.findings
    assert (finding.kind, finding.what, finding.length) == (
        Kind.LEMMA,
        "somebody is admitted",
        2,
    )


def test_several_processes_find_the_same() -> None:
    """How many processes explore makes no difference to what is found."""
    scope = Scope(requests=2, blocks=4, shapes=(PLAIN, LOADING), profile=Profile.vllm_0_25_1())
    one, two = explore(scope), explore(scope, jobs=2)
    assert (two.states, two.transitions) == (one.states, one.transitions)
    assert [f.program for f in two.findings] == [f.program for f in one.findings]
