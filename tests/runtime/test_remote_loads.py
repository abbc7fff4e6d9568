"""Remote loads: a request is parked with its blocks, and every end of its load acts once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from kvproof.core import Status
from kvproof.runtime import (
    CallerError,
    Request,
    RequestOutput,
    RequestRefused,
    Scheduler,
    SchedulerConfig,
    StepOutput,
)
from kvproof.runtime.connector import NOTHING_HAPPENED, TransferReport
from kvproof.runtime.request import FinishReason

Answer = tuple[int | None, bool]


class Script:
    """A connector that answers what a test says, once for each request, and notes its calls."""

    def __init__(self, **answers: Answer) -> None:
        """Answer with (0, False) for every other request, and after the first load."""
        self.answers = answers
        self.calls: list[tuple[Any, ...]] = []
        self.keep: set[str] = set()

    def match(
        self,
        request_id: str,
        block_hashes: Sequence[bytes],
        num_tokens: int,
        num_computed_tokens: int,
    ) -> Answer:
        """Answer as the script says."""
        self.calls.append(("match", request_id, len(block_hashes), num_computed_tokens))
        return self.answers.get(request_id, (0, False))

    def allocated(
        self, request_id: str, block_ids: Sequence[int], first_token: int, num_tokens: int
    ) -> None:
        """Note the load, and offer no other."""
        self.calls.append(("allocated", request_id, list(block_ids), first_token, num_tokens))
        if num_tokens:
            del self.answers[request_id]

    def written(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Note the call."""
        self.calls.append(("written", list(block_ids)))

    def evicted(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Note the call."""
        self.calls.append(("evicted", list(block_ids)))

    def preempted(self, request_id: str, block_ids: Sequence[int]) -> None:
        """Note the call."""
        self.calls.append(("preempted", request_id, list(block_ids)))

    def finished(self, request_id: str, block_ids: Sequence[int]) -> bool:
        """Keep the blocks of those that the test has named."""
        self.calls.append(("finished", request_id))
        return request_id in self.keep

    def aborted(self, request_id: str) -> None:
        """Note the call."""
        self.calls.append(("aborted", request_id))

    def poll(self) -> TransferReport:
        """Return nothing: tests make the reports."""
        return NOTHING_HAPPENED

    def has_pending_transfers(self) -> bool:
        """Return False."""
        return False

    def close(self) -> None:
        """Do nothing."""

    def named(self, kind: str) -> list[tuple[Any, ...]]:
        """Return the calls of one kind."""
        return [call for call in self.calls if call[0] == kind]


class Remote:
    """A small scheduler with a scripted connector; invariants are checked after each call."""

    def __init__(self, script: Script, **limits: Any) -> None:
        """Make a scheduler with blocks of two tokens."""
        small = {"num_blocks": 17, "block_size": 2, "max_model_len": 64, **limits}
        self.script = script
        self.scheduler = Scheduler(SchedulerConfig(**small), connector=script, debug=True)
        self.results: list[RequestOutput] = []

    def add(self, name: str, prompt: int, max_tokens: int = 2, **more: Any) -> None:
        """Add a request whose tokens are like nobody else's."""
        start = 1_000 * (1 + sum(name.encode()))
        tokens = tuple(range(start, start + prompt))
        self.scheduler.add_request(Request(name, tokens, max_tokens, **more))

    def step(self, **report: Any) -> StepOutput:
        """Do a step; `report` is what the connector says when it has run."""
        output = self.scheduler.schedule()
        self.account(output, **report)
        return output

    def account(self, output: StepOutput, **report: Any) -> None:
        """Account for a step."""
        samples = dict.fromkeys(output.sampled_req_ids, 0)
        transfers = TransferReport(**report)
        self.results += self.scheduler.update(output, samples, transfers)

    def status(self, name: str) -> Status | None:
        """Return the state of a request."""
        return self.scheduler.status(name)

    @property
    def free(self) -> int:
        """Free blocks."""
        return self.scheduler.statistics().num_free_blocks

    def drain(self) -> None:
        """Go on until nobody is left."""
        for _ in range(100):
            if not self.scheduler.has_work():
                return
            self.step()
        raise AssertionError("the scheduler does not come to an end")


@pytest.mark.rule("9")
def test_a_load_parks_its_request_with_its_blocks() -> None:
    """A request that is loaded has its blocks at once, and is not scheduled before the end."""
    remote = Remote(Script(a=(4, True)))
    remote.add("a", 6)

    assert remote.step().num_requests == 0
    assert remote.status("a") is Status.WAITING_FOR_REMOTE_KVS
    assert (remote.free, remote.scheduler.num_computed_tokens("a")) == (14, 4)
    assert remote.script.named("allocated") == [("allocated", "a", [1, 2], 0, 4)]
    assert remote.step(received=["a"]).num_requests == 0
    assert remote.status("a") is Status.WAITING

    assert remote.step().num_scheduled_tokens == {"a": 2}
    remote.drain()
    assert remote.free == 16


@pytest.mark.rule("9")
def test_a_full_hit_leaves_one_token_to_compute() -> None:
    """A load that brings the whole prompt gives its last token back, so that it can be sampled."""
    remote = Remote(Script(a=(6, True)))
    remote.add("a", 6)
    remote.step(received=["a"])

    assert remote.scheduler.num_computed_tokens("a") == 5
    assert remote.step().num_scheduled_tokens == {"a": 1}


@pytest.mark.rule("9")
def test_ask_again_lets_others_pass() -> None:
    """A request that cannot be answered for yet is skipped, and asked about in each pass."""
    remote = Remote(Script(a=(None, False)))
    remote.add("a", 4)
    remote.add("b", 4)

    assert remote.step().req_ids == ["b"]
    assert remote.scheduler.skipped_request_ids() == ["a"]
    remote.script.answers["a"] = 0, False
    assert remote.step().req_ids == ["b", "a"]
    assert Counter(call[1] for call in remote.script.named("match")) == {"a": 2, "b": 1}


@pytest.mark.rule("9", "vllm#50719")
def test_a_failed_block_cuts_what_was_loaded() -> None:
    """What lies behind the first failed block is computed, and nothing before it."""
    remote = Remote(Script(a=(6, True)))
    remote.add("a", 8)
    remote.step(received=["a"], failed_blocks=[2])

    assert remote.scheduler.num_computed_tokens("a") == 2
    assert remote.step().num_scheduled_tokens == {"a": 6}


@pytest.mark.rule("9")
def test_a_load_that_brings_nothing_starts_over() -> None:
    """If the first block has failed, all blocks come back and the request waits as if new."""
    remote = Remote(Script(a=(6, True)))
    remote.add("a", 8)
    remote.step(received=["a"], failed_blocks=[1])

    assert (remote.status("a"), remote.free) == (Status.WAITING, 16)
    assert remote.step().num_scheduled_tokens == {"a": 8}


@pytest.mark.rule("vllm#50754", "vllm#30659")
def test_a_lost_load_starts_over() -> None:
    """A load that will never end is given up when the connector says so."""
    remote = Remote(Script(a=(6, True)))
    remote.add("a", 8)
    remote.step(lost=["a"])

    assert (remote.status("a"), remote.free) == (Status.WAITING, 16)
    remote.drain()
    assert [result.request_id for result in remote.results if result.finished] == ["a"]


@pytest.mark.rule("9")
def test_policy_fail_ends_the_request() -> None:
    """Under the policy "fail" a failed load ends its request with an error, and blocks return."""
    remote = Remote(Script(a=(6, True)), kv_load_failure_policy="fail")
    remote.add("a", 8)
    remote.step(received=["a"], failed_blocks=[2])

    assert [(r.request_id, r.finish_reason) for r in remote.results] == [("a", FinishReason.ERROR)]
    assert (remote.status("a"), remote.free) == (None, 16)


@pytest.mark.rule("9")
def test_policy_fail_ends_the_request_of_a_lost_load() -> None:
    """Under the policy "fail" a load that is lost is one that failed."""
    remote = Remote(Script(a=(6, True)), kv_load_failure_policy="fail")
    remote.add("a", 8)
    remote.step(lost=["a"])

    assert [(r.request_id, r.finish_reason) for r in remote.results] == [("a", FinishReason.ERROR)]
    assert (remote.status("a"), remote.free, remote.scheduler.has_work()) == (None, 16, False)


@pytest.mark.rule("9")
def test_who_starts_over_in_the_next_step_has_a_table_of_its_own() -> None:
    """A request that is back at its place with a shorter table has nothing of the old one in it."""
    remote = Remote(Script(b=(8, False)), long_prefill_token_threshold=4)
    remote.add("a", 12, max_tokens=9)
    for _ in range(3):
        remote.step()
    remote.add("b", 10)
    output = remote.scheduler.schedule()
    output.to_tensors()
    table = remote.scheduler.block_ids("b")
    remote.account(output, failed_blocks=table[:1])
    output = remote.scheduler.schedule()

    held = remote.scheduler.block_ids("b")
    seen = output.to_tensors().block_table[1].tolist()
    assert output.req_ids == ["a", "b"]
    assert len(held) < len(table)
    assert seen == [*held, *[0] * (len(seen) - len(held))]


@pytest.mark.rule("9")
def test_a_session_whose_load_failed_leaves_its_row() -> None:
    """A session is parked at the end of a turn, but has ended if its load fails: the id is free."""
    remote = Remote(Script(a=(6, True)), kv_load_failure_policy="fail")
    remote.add("a", 8, resumable=True)
    remote.step(lost=["a"])

    assert remote.status("a") is None
    assert "a" in remote.scheduler.schedule().finished_req_ids
    remote.add("a", 4)


def test_a_first_decode_is_padded_behind_a_synchronous_load() -> None:
    """Who has one token left after its load decodes with draft tokens, if all others decode."""
    remote = Remote(Script(b=(4, False)), num_speculative_tokens=2)
    remote.add("a", 2, max_tokens=9)
    remote.step()
    remote.add("b", 5, max_tokens=9)
    output = remote.step()

    assert output.num_scheduled_tokens == {"a": 1, "b": 3}
    assert list(output.scheduled_spec_decode_tokens) == ["b"]
    assert len(remote.scheduler.block_ids("b")) == 4
    assert remote.script.named("allocated")[-1][2:] == (remote.scheduler.block_ids("b"), 0, 4)
    remote.drain()


@pytest.mark.rule("9")
@pytest.mark.parametrize("places", [(0, 1), (1, 0), (0, 2)])
def test_a_failed_block_stays_failed(places: tuple[int, int]) -> None:
    """Of blocks that are reported in turn the first in the table counts, whichever came first."""
    remote = Remote(Script(a=(6, True)))
    remote.add("a", 8)
    remote.step()
    blocks = remote.scheduler.block_ids("a")
    remote.step(failed_blocks=[blocks[places[0]]])
    remote.step(received=["a"], failed_blocks=[blocks[places[1]]])

    assert remote.status("a") is Status.WAITING
    assert remote.scheduler.block_ids("a") == []


@pytest.mark.rule("9", "15", "vllm#32255")
@pytest.mark.parametrize("end", ["received", "lost"])
def test_an_aborted_load_keeps_its_blocks_until_its_end(end: str) -> None:
    """The blocks of an aborted request wait for the transfer, and its id is not taken again."""
    remote = Remote(Script(a=(6, True)))
    remote.add("a", 8)
    remote.step()
    assert remote.scheduler.abort("a") == ["a"]

    assert (remote.free, remote.scheduler.has_work()) == (13, True)
    with pytest.raises(RequestRefused, match="still in transfer"):
        remote.add("a", 4)
    report: dict[str, Any] = {end: ["a"]}
    remote.step(**report)
    assert (remote.free, remote.scheduler.has_work()) == (16, False)
    remote.add("a", 4)


@pytest.mark.rule("9", "vllm#43433", "trt#12542")
def test_blocks_are_kept_until_they_have_been_sent() -> None:
    """A finished request's blocks are not free before the connector says that they were sent."""
    remote = Remote(Script())
    remote.script.keep.add("a")
    remote.add("a", 4, max_tokens=1)
    remote.step()

    assert (remote.status("a"), remote.free, remote.scheduler.has_work()) == (None, 14, True)
    remote.step(sent=["a"])
    assert (remote.free, remote.scheduler.has_work()) == (16, False)


@pytest.mark.parametrize("kind", ["received", "sent", "lost"])
@pytest.mark.parametrize("when", ["unknown", "waiting", "running", "loading twice", "ended"])
def test_a_signal_that_belongs_to_nothing_changes_nothing(kind: str, when: str) -> None:
    """Unknown, repeated, late and early ends are counted, and nothing else comes of them."""
    remote = Remote(Script(**({"a": (6, True)} if when == "loading twice" else {})))
    if when != "unknown":
        remote.add("a", 8, max_tokens=1 if when == "ended" else 4)
    if when == "waiting":
        remote.script.answers["a"] = None, False
    if when != "unknown":
        remote.step(**({"received": ["a"]} if when == "loading twice" else {}))
    before = remote.status("a"), remote.free
    output = remote.scheduler.schedule() if when == "unknown" else None
    remote.scheduler.check()

    if output is None:
        target = remote.scheduler._books.transfers
        assert target is not None
        report: dict[str, Any] = {kind: ["a"]}
        assert target.end(TransferReport(**report)) == []
        assert (target.num_unknown_signals, remote.status("a"), remote.free) == (1, *before)
    else:
        remote.account(output, **{kind: ["a"]})
    remote.scheduler.check()
    remote.script.answers.clear()
    remote.drain()
    assert remote.free == 16


def test_failed_blocks_that_no_load_owns_are_nobodys() -> None:
    """A failure of blocks that are free, local or unknown harms nobody."""
    remote = Remote(Script())
    remote.add("a", 4, max_tokens=4)
    remote.step(failed_blocks=[1, 2, 9, 4_000])
    remote.drain()

    assert [r.finish_reason for r in remote.results if r.finished] == [FinishReason.LENGTH]


@pytest.mark.rule("9", "vllm#45406", "vllm#57841")
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_who_holds_loaded_blocks_is_admitted_first(policy: str) -> None:
    """A loaded request goes before one that waits for what it holds, however urgent that is."""
    remote = Remote(Script(low=(4, True)), num_blocks=9, policy=policy)
    remote.add("low", 12, priority=2)
    remote.step()
    remote.add("high", 14, priority=1)
    remote.step(received=["low"])

    assert remote.step().req_ids == ["low"]
    remote.drain()
    assert remote.free == 8


@pytest.mark.rule("9", "vllm#45388", "vllm#30659")
def test_loads_that_do_not_fit_together_wait_for_each_other() -> None:
    """A load is admitted only if all that is loaded fits into the pool, each to its end."""
    remote = Remote(Script(a=(6, True), b=(8, True)), num_blocks=11)
    remote.add("a", 16)
    remote.add("b", 12)
    remote.step()

    assert remote.status("b") is Status.WAITING
    remote.step(received=["a"])
    assert remote.step().req_ids == ["a"]


@pytest.mark.rule("vllm#56640")
def test_a_load_of_one_token_ends_like_any_other() -> None:
    """A load that is too small to leave anything of use still ends once, and starts over."""
    remote = Remote(Script(a=(1, True)))
    remote.add("a", 1)
    remote.step(received=["a"])

    assert (remote.status("a"), remote.free) == (Status.WAITING, 16)


@pytest.mark.rule("9")
def test_a_synchronous_load_runs_in_the_same_step() -> None:
    """Tokens that are there when the step runs are not computed."""
    remote = Remote(Script(a=(4, False)))
    remote.add("a", 7)
    output = remote.step()

    assert (output.num_scheduled_tokens, output.computed.tolist()) == ({"a": 3}, [4])
    assert remote.script.named("allocated") == [("allocated", "a", [1, 2, 3, 4], 0, 4)]


@pytest.mark.rule("9")
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_failed_synchronous_load_brings_no_token(steps: int) -> None:
    """Samples of steps that ran on a failed load are dropped, those in flight too."""
    script = Script(a=(4, False))
    remote = Remote(script, max_steps_in_flight=steps, enable_prefix_caching=True)
    remote.add("a", 7, max_tokens=3)
    outputs = [remote.scheduler.schedule() for _ in range(steps)]
    remote.account(outputs[0], failed_blocks=[1])
    for output in outputs[1:]:
        remote.account(output)

    assert remote.results == []
    remote.drain()
    assert sum(len(result.new_token_ids) for result in remote.results) == 3
    assert remote.free == 16


@pytest.mark.rule("9")
def test_what_may_be_wrong_is_not_published() -> None:
    """Nothing of a request with a synchronous load is shared before its first step is back."""
    remote = Remote(
        Script(a=(4, False)), max_steps_in_flight=2, enable_prefix_caching=True, num_blocks=33
    )
    remote.add("a", 9, max_tokens=8)
    first = remote.scheduler.schedule()
    assert remote.script.named("written") == []
    remote.account(first)
    remote.step()

    assert remote.script.named("written") == [("written", [1, 2, 3, 4, 5])]


def test_evicted_blocks_are_shown_before_they_are_overwritten() -> None:
    """The connector hears of each published block that is taken for something else."""
    remote = Remote(Script(), num_blocks=5, enable_prefix_caching=True, max_model_len=8)
    remote.add("a", 6, max_tokens=1)
    remote.step()
    remote.add("b", 7, max_tokens=1)
    remote.step()

    assert [call[1] for call in remote.script.named("evicted")] == [[3, 2, 1]]


@pytest.mark.parametrize(("answer", "most"), [((9, True), 8), ((8, False), 7), ((-1, True), 8)])
def test_an_impossible_offer_is_refused(answer: Answer, most: int) -> None:
    """A connector that offers more than there is to load is told so."""
    remote = Remote(Script(a=answer))
    remote.add("a", 8)

    with pytest.raises(CallerError, match=f"expected 0 to {most}"):
        remote.scheduler.schedule()


def test_a_preemption_is_announced_before_blocks_are_given_back() -> None:
    """The connector is told which blocks a preempted request had."""
    remote = Remote(Script(), num_blocks=5, max_model_len=8)
    remote.add("a", 4, max_tokens=4)
    remote.add("b", 3, max_tokens=4)
    for _ in range(3):
        remote.step()

    assert remote.script.named("preempted") == [("preempted", "b", [3, 4])]


@pytest.mark.rule("vllm#53250")
def test_a_preempted_request_is_asked_about_anew() -> None:
    """After a preemption nothing of the first load counts: the connector is asked again."""
    remote = Remote(Script(a=(2, True)), num_blocks=5, max_model_len=8)
    remote.add("a", 3, max_tokens=4)
    remote.add("b", 3, max_tokens=4)
    remote.step(received=["a"])
    for _ in range(4):
        remote.step()

    assert [call[1] for call in remote.script.named("preempted")] == ["a"]
    remote.drain()
    asked = [call[3] for call in remote.script.named("match") if call[1] == "a"]
    assert (len(asked) > 1, set(asked)) == (True, {0})
    assert sorted(r.request_id for r in remote.results if r.finished) == ["a", "b"]
