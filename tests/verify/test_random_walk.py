"""Random walks go where an exploration goes, and can be gone again."""

import random
from collections import Counter

import pytest
from attrs import evolve

from kvproof.runtime import Profile
from kvproof.runtime.transfers import Transfers
from kvproof.verify.bugs.unreported_handlers import forgets_failures
from kvproof.verify.explorer import Scope, default_shapes
from kvproof.verify.explorer.events import Schedule, Update
from kvproof.verify.explorer.kv_walk import misread
from kvproof.verify.explorer.machine import Machine
from kvproof.verify.explorer.random_walk import random_walk

SCOPES = {
    "safe": Scope(in_flight=2),
    "reference": Scope(profile=Profile.vllm_0_25_1()),
    "priority": Scope(policy="priority"),
}
WORKLOAD = default_shapes(5, 2, "fcfs")[2:4]


@pytest.mark.parametrize("kind", SCOPES)
def test_a_walk_can_be_gone_again(kind: str) -> None:
    """The same calls, made of a fresh scheduler, are possible and lead to the same state."""
    scope = SCOPES[kind]
    walk = random_walk(scope, WORKLOAD, random.Random(0), 60)
    keys = []
    for _ in range(2):
        machine = Machine(scope, WORKLOAD)
        for event in walk:
            machine.follow(event)
        keys.append(machine.key()[1])
    assert keys[0] == keys[1]
    assert len(walk) == 60


def test_walks_make_every_call_and_meet_every_end() -> None:
    """Requests come and are aborted, loads are answered in each way, and end in each way."""
    seen, draw = Counter[str](), random.Random(0)
    for _ in range(30):
        for event in random_walk(evolve(SCOPES["safe"], in_flight=1), WORKLOAD, draw, 60):
            seen[type(event).__name__] += 1
            if isinstance(event, Schedule):
                seen.update(str(tokens) for _, tokens, _ in event.answers)
                seen["throttled"] += event.throttled
            elif isinstance(event, Update):
                ends = ("received", "failed", "lost", "sent")
                seen.update(end for end in ends if getattr(event, end))
    calls, answers = ("Arrive", "Abort", "Schedule", "Update"), ("None", "0", "2", "5")
    for what in (*calls, *answers, "throttled", "received", "failed", "lost", "sent"):
        assert seen[what] >= 5, what


def test_a_walk_without_a_call_to_make_ends() -> None:
    """Where every request is refused there is nothing to do."""
    (never,) = (shape for shape in SCOPES["safe"].shapes if shape.prompt > 10)
    assert random_walk(SCOPES["safe"], (never,), random.Random(0), 10) == []


KV_SCOPES = {
    "fcfs": Scope(),
    "priority": Scope(policy="priority", in_flight=2),
    "three in flight": Scope(requests=3, blocks=6, in_flight=3),
    "prefix caching": Scope(requests=3, blocks=6, in_flight=2, caches_prefixes=True),
    "fail": Scope(in_flight=2, failure_policy="fail", caches_prefixes=True),
    "chunks": Scope(requests=3, in_flight=2, admits_whole=False, token_budget=3),
    "lookahead": Scope(lookahead=2),
    "odd blocks": Scope(block_size=3, blocks=4, in_flight=2, caches_prefixes=True),
}


def misreadings(scope: Scope, walks: int) -> list[str]:
    """Return what is computed from foreign KV on random walks through a scope."""
    draw, workloads = random.Random(0), list(scope.workloads())
    found = []
    for _ in range(walks):
        workload = draw.choice(workloads)
        found.append(misread(scope, workload, random_walk(scope, workload, draw, 60)))
    return [message for message in found if message is not None]


@pytest.mark.parametrize("kind", KV_SCOPES)
def test_no_token_is_computed_from_foreign_kv(kind: str) -> None:
    """Whatever loads bring, and whoever is aborted meanwhile, each reads what is its own."""
    assert misreadings(KV_SCOPES[kind], walks=60) == []


def test_foreign_kv_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that forgets which blocks a load did not fill is found out; so is the reference."""
    faulty = forgets_failures(Transfers.note_failures)
    with monkeypatch.context() as patched:
        patched.setattr(Transfers, "note_failures", faulty)
        assert misreadings(SCOPES["safe"], walks=200)
    assert misreadings(evolve(SCOPES["reference"], in_flight=2), walks=60)
