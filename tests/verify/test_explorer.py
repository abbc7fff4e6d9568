"""The explorer of the real runtime finds what is there, and nothing else."""

from collections import Counter
from typing import Any

import pytest
from attrs import evolve

from kvproof.runtime import Profile
from kvproof.runtime.fences import Fences
from kvproof.runtime.profile import LoadAdmission
from kvproof.verify.explorer import WHOLE, Kind, Scope, Shape, Transition, explore
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
    with pytest.raises(AssertionError, match="nobody gets a token"):
        exec(first.program, {})


PART, MOST = Shape(prompt=5, max_tokens=2, offers=(2,)), Shape(prompt=6, max_tokens=1, offers=(4,))
WHOLLY = Shape(prompt=4, max_tokens=2, offers=(WHOLE,))


@pytest.mark.parametrize(
    ("shapes", "changes", "words"),
    [
        pytest.param(
            (PART, WHOLLY),
            {},
            "a WAITING has 5 tokens and 0 blocks; b WAITING_FOR_REMOTE_KVS has 4 tokens",
            id="Z4: a request without blocks stands before one with loaded blocks",
            marks=pytest.mark.rule("vllm#57841"),
        ),
        pytest.param(
            (Shape(prompt=4, max_tokens=2), evolve(MOST, priority=1)),
            {"policy": "priority"},
            "a PREEMPTED has 5 tokens and 0 blocks; b WAITING has 6 tokens and 2 blocks",
            id="Z2: an urgent request does not fit beside loaded blocks",
            marks=pytest.mark.rule("vllm#45406"),
        ),
        pytest.param(
            (WHOLLY,),
            {"lookahead": 1},
            "a WAITING has 4 tokens and 2 blocks; b WAITING has 4 tokens and 2 blocks; 0 of 4",
            id="Z3: slots for look-ahead are not in the reservation",
            marks=pytest.mark.rule("vllm#57104"),
        ),
        pytest.param(
            (Shape(prompt=9, max_tokens=1),),
            {"admits_whole": False},
            "the same 2 steps go round: a PREEMPTED has 9 tokens",
            id="Z11: admitted by its first chunk, preempted, and again",
            marks=pytest.mark.rule("vllm#21809"),
        ),
    ],
)
def test_rediscovers_public_freezes(
    shapes: tuple[Shape, ...], changes: dict[str, Any], words: str
) -> None:
    """The reference has the freezes that were reported; the safe profile has them not."""
    calm = Scope(blocks=4, shapes=shapes, offers_again=False, loads_fail=False, aborts=False)
    safe = evolve(calm, **changes)
    reference = evolve(safe, profile=Profile.vllm_0_25_1())
    assert any(words in finding.what for finding in explore(reference).findings)
    assert not explore(safe).findings


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


def test_finds_a_load_gate_that_is_open() -> None:
    """Loads that are admitted without looking at who else is loaded strand each other."""
    found = kinds(evolve(SMALL, profile=evolve(Profile(), load_admission=LoadAdmission.FITS)))
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
