"""Profiles: each rule in which kvproof differs from vLLM 0.25.1, and the difference it makes.

One test a rule, with that rule alone changed; the last tests hold the class to its documentation.
"""

import re
from collections import deque
from typing import Any

import attrs
import pytest
from attrs import evolve

from kvproof.core import Status
from kvproof.runtime import (
    EncoderItem,
    Request,
    RequestRefused,
    Scheduler,
    SchedulerConfig,
    StepOutput,
)
from kvproof.runtime.connector import TransferReport
from kvproof.runtime.profile import LoadAdmission, Profile
from kvproof.verify.recorded_connector import RecordedConnector, RemoteKV

RULES = [field.name for field in attrs.fields(Profile) if field.name != "name"]
TOKEN = 7


def scheduler(rules: dict[str, Any] | Profile, num_blocks: int, **limits: Any) -> Scheduler:
    """Return a scheduler with blocks of four tokens, safe but for some rules."""
    profile = rules if isinstance(rules, Profile) else evolve(Profile(), **rules)
    sizes = {"block_size": 4, "max_model_len": 4 * (num_blocks - 1)} | limits
    return Scheduler(SchedulerConfig(num_blocks=num_blocks, profile=profile, **sizes))


def request(name: str, prompt: int, max_tokens: int = 4, priority: int = 0) -> Request:
    """Return a request whose prompt is like nobody else's."""
    tokens = [100 * ord(name[0]) + place for place in range(prompt)]
    return Request(name, tuple(tokens), max_tokens, priority=priority)


def step(target: Scheduler, *, throttle: bool = False) -> StepOutput:
    """Do one step in which everybody who samples samples the same token, and no draft is right."""
    output = target.schedule(throttle)
    target.update(output, {name: [TOKEN] for name in output.sampled_req_ids})
    return output


# --- The rules, one by one ------------------------------------------------------------------------


@pytest.mark.parametrize(("early", "hits"), [(True, 20), (False, 16)])
@pytest.mark.rule("6", "vllm#43569")
def test_publishes_at_allocation(early: bool, hits: int) -> None:
    """A victim of the step that gave it blocks comes back to them, unwritten (vllm#43569, #57580).

    What its tokens become is shown in test_publication.py.
    """
    target = scheduler(
        {"publishes_at_allocation": early},
        num_blocks=9,
        policy="priority",
        enable_prefix_caching=True,
        long_prefill_token_threshold=8,
    )
    target.add_request(request("A", 26, priority=10))
    step(target)
    target.add_request(request("B", 8, max_tokens=3))
    while not (output := step(target)).resumed_req_ids:
        pass

    assert output.req_ids == ["A"]
    assert output.computed.tolist() == [hits]


@pytest.mark.rule("vllm#39734")
def test_accepts_what_never_fits() -> None:
    """A request larger than the pool is refused, or blocks all behind it (vllm#39734, #35541)."""
    endless = scheduler({"accepts_what_never_fits": True}, num_blocks=5, max_model_len=64)
    endless.add_request(request("A", 30))
    endless.add_request(request("B", 3))

    assert all(step(endless).num_requests == 0 for _ in range(20))
    assert endless.waiting_request_ids() == ["A", "B"]

    safe = scheduler({}, num_blocks=5, max_model_len=64)
    with pytest.raises(RequestRefused, match="33 tokens need 9 blocks of 4, but the pool has 4"):
        safe.add_request(request("A", 30))
    safe.add_request(request("B", 3))

    assert step(safe).req_ids == ["B"]


@pytest.mark.parametrize(("beyond", "tokens"), [(True, 4), (False, 2)])
@pytest.mark.rule("13")
def test_drafts_beyond_limit(beyond: bool, tokens: int) -> None:
    """With two tokens to go, three drafts are tried, or only the one that could be accepted."""
    target = scheduler({"drafts_beyond_limit": beyond}, num_blocks=9, num_speculative_tokens=3)
    target.add_request(request("A", 5, max_tokens=3))
    step(target)
    target.update_draft_tokens({"A": [1, 2, 3]})

    assert target.schedule().num_scheduled_tokens == {"A": tokens}


@pytest.mark.parametrize("profile", [Profile.vllm_0_25_1(), Profile()], ids=lambda p: p.name)
def test_drafts_beyond_limit_take_more_than_the_pool(profile: Profile) -> None:
    """A request that fits the pool preempts itself for drafts that it cannot use, or does not."""
    target = scheduler(profile, num_blocks=3, max_model_len=64, num_speculative_tokens=3)
    target.add_request(request("A", 5, max_tokens=3))
    step(target)
    target.update_draft_tokens({"A": [1, 2, 3]})

    preempted = step(target).preempted_req_ids

    assert preempted == ({"A"} if profile.drafts_beyond_limit else set())


@pytest.mark.parametrize(("skips", "served"), [(True, ["B"]), (False, ["B", "C"])])
@pytest.mark.rule("4")
def test_skips_after_early_victim(skips: bool, served: list[str]) -> None:
    """When a throttled prefill in front becomes the victim, the next decode loses its turn, or not.

    A's prefill is throttled and so passed over; B's decode needs a block and takes A's; A leaves
    the list, so that everybody moves up by one, and C stands where the pass has just been.
    """
    target = scheduler(
        {"skips_after_early_victim": skips},
        num_blocks=5,
        max_model_len=32,
        policy="priority",
        long_prefill_token_threshold=4,
    )
    target.add_request(request("A", 16, max_tokens=1, priority=9))
    step(target)
    target.add_request(request("B", 4))
    target.add_request(request("C", 4))
    step(target)
    assert target.running_request_ids() == ["A", "B", "C"]

    output = step(target, throttle=True)

    assert output.preempted_req_ids == {"A"}
    assert output.req_ids == served


@pytest.mark.parametrize(
    ("drops", "encoded"),
    [(True, [{"A": [0]}, {"B": [0]}, {"A": [1]}]), (False, [{"A": [0]}, {}, {"B": [0]}])],
)
@pytest.mark.rule("14", "vllm#54284")
def test_drops_half_read_repeats(drops: bool, encoded: list[dict[str, list[int]]]) -> None:
    """A half-read item is evicted for another request, and computed twice (vllm#54284)."""
    target = scheduler(
        {"drops_half_read_repeats": drops},
        num_blocks=9,
        encoder_cache_size=2,
        max_num_encoder_input_tokens=2,
        long_prefill_token_threshold=3,
    )
    shown_twice = [EncoderItem("x", 0, 2), EncoderItem("x", 2, 2)]
    target.add_request(Request("B", range(5), 1, mm_features=[EncoderItem("y", 3, 2)]))
    target.add_request(Request("A", range(5), 1, mm_features=shown_twice))

    assert [step(target).scheduled_encoder_inputs for _ in range(3)] == encoded


class Untiring(RecordedConnector):
    """The same, which offers what it has loaded again."""

    def match(self, request_id: str, *known: Any) -> tuple[int | None, bool]:
        """Answer as if nothing had been loaded."""
        self._loaded.clear()
        return super().match(request_id, *known)


def loading(
    rules: dict[str, Any],
    num_blocks: int,
    remote: dict[str, RemoteKV],
    *,
    always: bool = False,
    **limits: Any,
) -> Scheduler:
    """Return the same with a connector that offers what a test says, once or whenever it can."""
    sizes = {"block_size": 4, "max_model_len": 4 * (num_blocks - 1)} | limits
    profile = evolve(Profile(), **rules)
    config = SchedulerConfig(num_blocks=num_blocks, profile=profile, **sizes)
    connector = Untiring(remote) if always else RecordedConnector(remote)
    return Scheduler(config, connector=connector)


def ended(target: Scheduler, **report: Any) -> StepOutput:
    """Do one step with which the connector reports something."""
    output = target.schedule()
    samples = dict.fromkeys(output.sampled_req_ids, TOKEN)
    target.update(output, samples, TransferReport(**report))
    return output


@pytest.mark.parametrize(("at_once", "preempted"), [(True, ["a", "b"]), (False, [])])
@pytest.mark.rule("10", "vllm#49674")
def test_preempts_in_flight(at_once: bool, preempted: list[str]) -> None:
    """Everybody is preempted, for that frees nothing, or a victim is waited for (vllm#49674)."""
    target = scheduler({"preempts_in_flight": at_once}, num_blocks=5, max_steps_in_flight=2)
    target.add_request(request("a", 8, max_tokens=8))
    target.add_request(request("b", 8, max_tokens=8))
    first = target.schedule()

    second = target.schedule()
    assert (sorted(second.preempted_req_ids), second.req_ids) == (preempted, [])
    target.update(first, dict.fromkeys(first.sampled_req_ids, TOKEN))
    target.update(second, ())
    if not at_once:
        third = target.schedule()
        assert (third.req_ids, list(third.preempted_req_ids)) == (["a"], ["b"])


@pytest.mark.parametrize(("early", "free"), [(True, 4), (False, 2)])
@pytest.mark.rule("10", "vllm#45357")
def test_reuses_in_flight(early: bool, free: int) -> None:
    """Blocks that a step in flight writes are free at once, or when it is back (vllm#45357)."""
    target = scheduler({"reuses_in_flight": early}, num_blocks=5, max_steps_in_flight=2)
    target.add_request(request("a", 8))
    output = target.schedule()
    target.abort("a")

    assert target.statistics().num_free_blocks == free
    target.update(output, [TOKEN])
    assert target.statistics().num_free_blocks == 4


def served_once_loaded(rules: dict[str, Any]) -> list[str]:
    """Return whom a step serves when a load has ended, and a more urgent request does not fit."""
    remote = {"low": RemoteKV(tokens=8), "high": RemoteKV()}
    target = loading(rules, 9, remote, policy="priority")
    target.add_request(request("low", 24, priority=2))
    ended(target)
    target.add_request(request("high", 28, priority=1))
    ended(target, received=["low"])
    return step(target).req_ids


@pytest.mark.parametrize(("late", "served"), [(True, []), (False, ["low"])])
@pytest.mark.rule("9", "vllm#45406", "vllm#57841")
def test_promotes_at_scan(late: bool, served: list[str]) -> None:
    """Behind a head that does not fit nobody sees that a load ended (vllm#45406, vllm#57841)."""
    assert served_once_loaded({"promotes_at_scan": late}) == served


@pytest.mark.parametrize(
    ("rule", "prompt", "remote", "loads"),
    [
        (LoadAdmission.FITS, 32, 8, 2),
        (LoadAdmission.WHOLE_PROMPT, 32, 8, 1),
        (LoadAdmission.WHOLE_PROMPT, 28, 12, 2),
        (LoadAdmission.RESERVATION, 28, 12, 1),
        (LoadAdmission.RESERVATION, 24, 8, 2),
        (LoadAdmission.TOGETHER, 24, 8, 1),
        (LoadAdmission.TOGETHER, 8, 8, 2),
    ],
)
@pytest.mark.rule("9", "vllm#48433", "vllm#45388", "vllm#30659")
def test_load_admission(rule: LoadAdmission, prompt: int, remote: int, loads: int) -> None:
    """A second load is admitted or not, beside one of 3 blocks of 8 (vllm#30659, vllm#45388)."""
    offers = {"a": RemoteKV(tokens=12), "b": RemoteKV(tokens=remote)}
    target = loading({"load_admission": rule}, 11, offers)
    target.add_request(request("a", 32))
    target.add_request(request("b", prompt))
    ended(target)

    assert sum(target.status(name) is Status.WAITING_FOR_REMOTE_KVS for name in "ab") == loads


@pytest.mark.rule("9", "vllm#18115")
def test_load_leaves_room_for_the_first() -> None:
    """What the first running request still needs for its known tokens, no load takes."""
    offers = {"a": RemoteKV(), "b": RemoteKV(tokens=12)}
    target = loading({}, 11, offers, max_num_batched_tokens=4)
    target.add_request(request("a", 32))
    ended(target)
    target.add_request(request("b", 16))
    ended(target)

    assert target.status("b") is Status.WAITING  # a holds 2 blocks and needs 6 of the 8 free ones


@pytest.mark.parametrize(("ignored", "loads"), [(True, 2), (False, 1)])
@pytest.mark.rule("9", "vllm#57104")
def test_ignores_lookahead_of_loads(ignored: bool, loads: int) -> None:
    """Two loads fit together without their slots for look-ahead, and not with (vllm#57104)."""
    offers = {"a": RemoteKV(tokens=8), "b": RemoteKV(tokens=8)}
    rules = {"ignores_lookahead_of_loads": ignored}
    target = loading(rules, 11, offers, num_lookahead_tokens=4)
    target.add_request(request("a", 20))
    target.add_request(request("b", 20))
    ended(target)

    assert sum(target.status(name) is Status.WAITING_FOR_REMOTE_KVS for name in "ab") == loads


@pytest.mark.parametrize(("late", "served"), [(True, []), (False, ["low"])])
@pytest.mark.rule("9", "vllm#45406", "vllm#57841")
def test_lets_others_pass_loaded(late: bool, served: list[str]) -> None:
    """A loaded request waits behind one that needs its blocks (vllm#45406, vllm#57841)."""
    assert served_once_loaded({"lets_others_pass_loaded": late}) == served


@pytest.mark.parametrize(
    ("again", "status"), [(True, Status.WAITING_FOR_REMOTE_KVS), (False, Status.RUNNING)]
)
@pytest.mark.rule("9")
def test_repeats_failed_loads(again: bool, status: Status) -> None:
    """A request whose load was lost is loaded again, or computed."""
    target = loading({"repeats_failed_loads": again}, 9, {"a": RemoteKV(tokens=8)}, always=True)
    target.add_request(request("a", 10))
    ended(target)
    ended(target, lost=["a"])
    ended(target)

    assert target.status("a") is status


@pytest.mark.parametrize(("first", "victim"), [(True, "b"), (False, "c")])
@pytest.mark.rule("3")
def test_preempts_first_of_equals(first: bool, victim: str) -> None:
    """Of two that are equally urgent, the one is preempted that was admitted first, or last."""
    target = scheduler({"preempts_first_of_equals": first}, 7, policy="priority")
    for name, priority in (("a", 0), ("b", 1), ("c", 1)):
        target.add_request(request(name, 8, max_tokens=9, priority=priority))
    while not (output := step(target)).preempted_req_ids:
        pass

    assert output.preempted_req_ids == {victim}


@pytest.mark.parametrize(("goes_on", "served"), [(True, ["a", "c"]), (False, ["a"])])
@pytest.mark.rule("12")
def test_scans_past_refusals(goes_on: bool, served: list[str]) -> None:
    """A small request is admitted behind a large one that does not fit, or waits (vllm#57413)."""
    target = scheduler({"scans_past_refusals": goes_on}, 9)
    for name, prompt in (("a", 16), ("b", 20), ("c", 8)):
        target.add_request(request(name, prompt))
    step(target)

    assert target.running_request_ids() == served
    assert target.waiting_request_ids()[0] == "b"


@pytest.mark.parametrize(("kept", "served"), [(True, []), (False, ["c"])])
@pytest.mark.rule("9", "vllm#48433")
def test_keeps_room_for_loads(kept: bool, served: list[str]) -> None:
    """A local request may take what a load still needs, or must leave it (vllm#48433)."""
    target = loading({"keeps_room_for_loads": kept}, 11, {"a": RemoteKV(tokens=4), "c": RemoteKV()})
    target.add_request(request("a", 32))
    target.add_request(request("c", 20))
    ended(target)

    assert target.running_request_ids() == served


@pytest.mark.parametrize(("in_place", "status"), [(True, Status.RUNNING), (False, Status.WAITING)])
@pytest.mark.rule("9")
def test_recomputes_in_place(in_place: bool, status: Status) -> None:
    """A request whose synchronous load failed goes on in published blocks, or starts over.

    What others find there is shown by the recordings `demo-bad-poison-load`.
    """
    remote = {"a": RemoteKV(tokens=8, asynchronous=False)}
    target = loading({"recomputes_in_place": in_place}, 9, remote, enable_prefix_caching=True)
    target.add_request(request("a", 10))
    ended(target, failed_blocks=[1])

    assert (target.status("a"), target.num_computed_tokens("a")) == (status, 0)


def test_drafts_wait_for_who_recomputes_in_place() -> None:
    """Who was just cut to what a failed load has brought is passed over, and goes on without."""
    remote = {"a": RemoteKV(tokens=8, asynchronous=False)}
    target = loading({"recomputes_in_place": True}, 9, remote, num_speculative_tokens=2)
    target.add_request(request("a", 10, max_tokens=5))
    ended(target, failed_blocks=[2])
    target.update_draft_tokens({"a": [TOKEN, TOKEN]})

    assert target.num_computed_tokens("a") == 4
    assert target.schedule().num_scheduled_tokens == {"a": 6}


@pytest.mark.parametrize(
    ("expects", "status", "tokens", "known"),
    [(True, Status.RUNNING, {"a": 8}, 11), (False, Status.WAITING, {"a": 10}, 10)],
)
@pytest.mark.rule("11")
def test_expects_dropped_samples(
    expects: bool, status: Status, tokens: dict[str, int], known: int
) -> None:
    """Of two steps on a failed load the second one's sample counts, or neither does.

    From the first bad block on, the request has six known tokens to compute anew. Two samples are
    expected, though one of them was dropped, so that it gets eight tokens; or all that it knows.
    """
    rules = {"recomputes_in_place": expects, "expects_dropped_samples": expects}
    remote = {"a": RemoteKV(tokens=8, asynchronous=False)}
    target = loading(rules, 9, remote, max_steps_in_flight=2)
    target.add_request(request("a", 10, max_tokens=5))
    first, second = target.schedule(), target.schedule()
    target.update(first, [TOKEN], TransferReport(failed_blocks=target.block_ids("a")[1:2]))

    assert target.status("a") is status
    third = target.schedule()
    assert third.num_scheduled_tokens == tokens
    target.update(second, [TOKEN])
    assert len(target.token_ids("a")) == known


@pytest.mark.rule("11")
def test_expects_dropped_samples_to_the_end() -> None:
    """A request that owes a sample to nobody is computed one token too far, in a block too many."""
    rules = {"recomputes_in_place": True, "expects_dropped_samples": True}
    remote = {"a": RemoteKV(tokens=8, asynchronous=False)}
    target = loading(rules, 9, remote, max_steps_in_flight=2)
    target.add_request(request("a", 10, max_tokens=3))
    waiting = deque([target.schedule(), target.schedule()])
    target.update(waiting.popleft(), [TOKEN], TransferReport(failed_blocks=[2]))
    ends = []
    while target.has_unfinished_requests():
        waiting.append(target.schedule())
        ends += (waiting[-1].computed + waiting[-1].tokens).tolist()
        output = waiting.popleft()
        target.update(output, [TOKEN] * len(output.sampled_req_ids))

    assert ends == [12, 13]
    assert target.statistics().num_free_blocks == 8


# --- The class and its documentation --------------------------------------------------------------


def documented() -> dict[str, str]:
    """Return what the docstring of the class says about each attribute."""
    text = (Profile.__doc__ or "").partition("Attributes:")[2]
    entries = re.findall(r"^ {8}(\w+): (.*?)(?=^ {8}\w|\Z)", text, re.MULTILINE | re.DOTALL)
    return {name: " ".join(words.split()) for name, words in entries}


def test_every_rule_is_documented() -> None:
    """The documentation names exactly the rules that there are, in their order."""
    assert list(documented()) == RULES


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_says_why_and_what_is_safe(rule: str) -> None:
    """Each rule cites a report or says what goes wrong, and ends with what is done instead."""
    trouble, safe = documented()[rule].split(" Safe: ")

    assert re.search(r"\(vllm#\d+", trouble) or len(trouble.split()) > 8
    assert safe.endswith(".")


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_test(rule: str) -> None:
    """Each rule has a test of its name here, which cites the reports that the rule cites."""
    test = globals()[f"test_{rule}"]

    for report in re.findall(r"#\d+", documented()[rule]):
        assert report in (test.__doc__ or "")


def test_vllm_differs_in_every_rule_but_two() -> None:
    """The two profiles are the two ends, but for two rules that vLLM 0.25.1 has not either."""
    vllm, safe = Profile.vllm_0_25_1(), Profile.safe()

    same = {rule for rule in RULES if getattr(vllm, rule) == getattr(safe, rule)}
    assert same == {"scans_past_refusals", "keeps_room_for_loads"}
    flags = [rule for rule in RULES if rule != "load_admission"]
    assert not any(getattr(safe, rule) for rule in flags)
    assert (vllm.name, safe.name) == ("vllm-0.25.1", "safe")
    assert SchedulerConfig(num_blocks=2).profile == safe
