"""The scheduler of vLLM, where it is installed: the calls of explorations, one by one."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from kvproof.runtime import Profile, StepOutput
from kvproof.verify.explorer import Exploration, Finding, Kind, Scope, Shape, explore, report
from kvproof.verify.explorer.events import Arrive, Schedule, Update
from kvproof.verify.explorer.machine import Machine
from kvproof.verify.explorer.random_walk import random_walk

ROUNDS = 10  # as in vllm_follower.py
WALKS, CALLS = 100, 40
REFERENCE = Scope(profile=Profile.vllm_0_25_1())
SCOPES = {
    "fcfs": REFERENCE,
    "priority": Scope(profile=REFERENCE.profile, policy="priority"),
    "two steps in flight": evolve(REFERENCE, in_flight=2),
    "first chunk": evolve(REFERENCE, admits_whole=False),
}
WIDER = {
    **SCOPES,
    "three requests": evolve(REFERENCE, requests=3, blocks=6, in_flight=2),
    "prefix caching": evolve(REFERENCE, caches_prefixes=True, in_flight=2),
    "watermark": evolve(REFERENCE, watermark=0.3),
    "small budget": evolve(REFERENCE, requests=3, token_budget=4),
    # vLLM gives the blocks of a load that fails early back at once, and falls over its end.
    "fail": evolve(REFERENCE, failure_policy="fail", failures_come_early=False, in_flight=2),
}

Decision = tuple[dict[str, int], list[str], dict[str, int]]


def follow(found: Exploration, folder: Path, beside_vllm: Any) -> list[dict[str, Any]]:
    """Let vLLM follow the calls of findings; return what became of each."""
    calls, answers = folder / "calls.json", folder / "answers.jsonl"
    calls.write_text(json.dumps(report.to_json(found)))
    beside_vllm("vllm_follower", calls, answers)
    return [json.loads(line) for line in answers.read_text().splitlines()]


def of(scope: Scope, *findings: Finding) -> Exploration:
    """Return an exploration that has found these."""
    return Exploration(scope, parts=(), seconds=0.0, is_complete=True, findings=findings)


def theirs(answer: dict[str, Any]) -> list[Decision]:
    """Return what vLLM decided."""
    fields = ("num_scheduled_tokens", "preempted", "computed_at_schedule")
    return [tuple(step[field] for field in fields) for step in answer["decisions"]]


def ours(scope: Scope, finding: Finding) -> list[Decision]:
    """Return what the runtime decides under the same calls: tokens, victims, computed tokens."""
    machine, found = Machine(scope, finding.workload), list[Decision]()
    for event in (*finding.events, *finding.loop * ROUNDS):
        machine.follow(event)
        step = machine.outcome
        if isinstance(step, StepOutput):
            tokens, computed = step.tokens.tolist(), step.computed.tolist()
            scheduled = dict(zip(step.req_ids, tokens, strict=True))
            before = dict(zip(step.req_ids, computed, strict=True))
            found.append((scheduled, sorted(step.preempted_req_ids), before))
    return found


def finding_of(workload: Sequence[Shape], *events: Any, loop: Sequence[Any] = ()) -> Finding:
    """Return calls as a finding."""
    return Finding(
        kind=Kind.FREEZE,
        what="",
        program="",
        length=len(events),
        signature="",
        workload=tuple(workload),
        events=events,
        loop=tuple(loop),
    )


@pytest.mark.parametrize("kind", SCOPES)
def test_vllm_is_stuck_where_the_explorer_says_so(
    kind: str, tmp_path: Path, beside_vllm: Any
) -> None:
    """In each freeze and livelock nobody gets anything of vLLM, and its decisions are ours."""
    result = explore(SCOPES[kind])
    endless = of(result.scope, *(finding for finding in result.findings if finding.loop))
    answers = follow(endless, tmp_path, beside_vllm)
    assert {finding.kind for finding in endless.findings} == {Kind.FREEZE, Kind.LIVELOCK}
    for finding, answer in zip(endless.findings, answers, strict=True):
        assert answer["left"], finding.what
        assert answer["gained"] == [], finding.what
        assert theirs(answer) == ours(result.scope, finding), finding.what


def test_vllm_serves_who_is_not_stuck(tmp_path: Path, beside_vllm: Any) -> None:
    """By the same comparison an ordinary request gets its tokens, and ends."""
    calls = finding_of((Shape(prompt=3, max_tokens=4),), Arrive("a"), loop=(Schedule(), Update()))
    (answer,) = follow(of(REFERENCE, calls), tmp_path, beside_vllm)
    assert (answer["gained"], answer["left"]) == (["a"], [])


@pytest.mark.parametrize("kind", WIDER)
def test_vllm_decides_the_same_in_whatever_is_explored(
    kind: str, tmp_path: Path, beside_vllm: Any
) -> None:
    """On random walks through all that an exploration tries, vLLM decides as the runtime does."""
    scope, draw = WIDER[kind], random.Random(1)
    workloads = list(scope.workloads())
    drawn = [draw.choice(workloads) for _ in range(WALKS)]
    walks = [finding_of(kinds, *random_walk(scope, kinds, draw, CALLS)) for kinds in drawn]
    answers = follow(of(scope, *walks), tmp_path, beside_vllm)
    for walk, answer in zip(walks, answers, strict=True):
        assert theirs(answer) == ours(scope, walk), walk.events
