"""Explanations of requests whose KV is loaded or sent, and of those that wait with loaded KV."""

from __future__ import annotations

from typing import Any

import pytest

from kvproof.core import Status
from kvproof.runtime import Explanation, Profile, Request, Scheduler, SchedulerConfig, StepOutput
from kvproof.runtime.connector import TransferReport
from kvproof.runtime.demand import Demand, Quantity
from kvproof.runtime.explanation import Doing, Event, Holder, Kind, Outlook, Queue
from kvproof.verify.recorded_connector import RecordedConnector, RemoteKV

NEXT_STEP = (Event(Kind.NEXT_STEP),)


class Remote:
    """A small scheduler and a connector that answers by request what a test says."""

    def __init__(self, entries: dict[str, RemoteKV], **limits: Any) -> None:
        """Make a scheduler with blocks of two tokens; debug mode under a safe profile only."""
        small = {"num_blocks": 17, "block_size": 2, "max_model_len": 64, **limits}
        self.config = SchedulerConfig(**small)
        self.connector = RecordedConnector(entries)
        self.frozen: list[list[Explanation]] = []
        self.scheduler = Scheduler(
            self.config,
            connector=self.connector,
            on_freeze=lambda found: self.frozen.append(list(found)),
            debug=self.config.profile == Profile(),
        )

    def add(self, name: str, prompt: int, max_tokens: int = 2, priority: int = 0) -> None:
        """Add a request whose tokens are like nobody else's; nothing of it can be loaded."""
        self.connector.entries = {name: RemoteKV(), **self.connector.entries}
        start = 1_000 * (1 + sum(name.encode()))
        tokens = tuple(range(start, start + prompt))
        self.scheduler.add_request(Request(name, tokens, max_tokens, priority=priority))

    def step(self, **report: Any) -> StepOutput:
        """Do a step; `report` is what the connector says when it has run."""
        output = self.scheduler.schedule()
        samples = dict.fromkeys(output.sampled_req_ids, 0)
        self.scheduler.update(output, samples, TransferReport(**report))
        return output

    def explained(self, name: str) -> Explanation:
        """Explain a request, and demand that this asks the connector nothing."""
        asked = dict(self.connector._asked)
        found = self.scheduler.explain(name)
        assert self.connector._asked == asked
        return found


def test_a_load_is_waited_for() -> None:
    """Who is to be loaded starts in the next step, and then waits for the end of that transfer."""
    remote = Remote({"a": RemoteKV(tokens=6)})
    remote.add("a", 7)
    assert remote.explained("a").demand == Demand("match", Quantity.ANSWER, 1, 0)
    remote.step()

    found = remote.explained("a")
    assert (found.outlook, found.queue) == (Outlook.LOADING, Queue.SKIPPED)
    assert (found.status, found.demand) == (Status.WAITING_FOR_REMOTE_KVS, None)
    assert found.events == (Event(Kind.LOADED, "a"),)
    assert str(found).endswith("is being loaded. Ends with the end of the load of a.")
    remote.step(received=["a"])
    landed = remote.explained("a")
    assert (landed.queue, landed.outlook, landed.tokens) == (Queue.LANDED, Outlook.ADMITTED, 1)


def test_the_last_answer_of_the_connector_is_taken() -> None:
    """A request whose load was refused is foretold to start when that has room, without asking."""
    remote = Remote({"b": RemoteKV(tokens=12)}, num_blocks=9, max_num_seqs=2)
    remote.add("a", 6, 1)
    remote.add("b", 13)
    output = remote.scheduler.schedule()
    refused = remote.explained("b")
    assert refused.outlook is Outlook.REFUSED
    assert refused.demand is not None
    assert refused.demand.quantity is Quantity.BLOCKS
    assert refused.holders == (Holder("a", Doing.RUNS, blocks=3, alone=3),)

    remote.scheduler.update(output, {"a": 0}, TransferReport())
    found = remote.explained("b")
    assert (found.outlook, found.events) == (Outlook.LOADS, NEXT_STEP)


def test_an_answer_is_waited_for() -> None:
    """A connector that cannot say yet is what the request waits for."""
    remote = Remote({"a": RemoteKV(tokens=6, unknown=2)})
    remote.add("a", 7)
    remote.step()

    found = remote.explained("a")
    assert found.demand == Demand("match", Quantity.ANSWER, 1, 0)
    assert found.events == (Event(Kind.ANSWER, "a"),)
    assert "is refused. match: the connector has not answered yet. Ends with the connector" in str(
        found
    )


@pytest.mark.rule("vllm#53130")
def test_what_is_loaded_must_fit_together() -> None:
    """The safe rule names who is loaded, and how much of the pool each of them needs."""
    remote = Remote({"a": RemoteKV(tokens=12), "b": RemoteKV(tokens=8)})
    remote.add("a", 20)
    remote.add("b", 13)
    output = remote.scheduler.schedule()

    found = remote.explained("b")
    rule = "what is loaded fits together"
    assert found.demand == Demand(rule, Quantity.POOL, needed=7, free=16, reserved=10)
    assert found.holders == (Holder("a", Doing.LOADING, blocks=6, alone=6, reserved=10),)
    assert found.events == (Event(Kind.END, "a"),)
    assert "a has 6 blocks, 10 blocks reserved and is being loaded" in str(found)
    remote.scheduler.update(output, {}, TransferReport())


def test_blocks_kept_for_a_send_are_named() -> None:
    """An ended request is a holder until its blocks are sent, and is explained itself."""
    remote = Remote({"a": RemoteKV(send_delay=9)}, num_blocks=9)
    remote.add("a", 8, 1)
    remote.step()
    remote.step()
    remote.add("b", 14, 1)
    remote.step()

    found = remote.explained("b")
    assert found.demand == Demand("admit", Quantity.BLOCKS, needed=7, free=4)
    assert found.holders == (Holder("a", Doing.SENDING, blocks=4, alone=4),)
    assert found.events == (Event(Kind.SENT, "a"),)
    kept = remote.explained("a")
    assert (kept.status, kept.outlook) == (Status.ABSENT, Outlook.ENDED)
    assert (kept.holders, kept.events) == (found.holders, found.events)
    remote.step(sent=["a"])
    assert remote.explained("b").outlook is Outlook.ADMITTED
    with pytest.raises(KeyError):
        remote.scheduler.explain("a")


def test_an_abort_while_loading_keeps_the_blocks() -> None:
    """The holder is the aborted request, and its transfer is what ends the wait."""
    remote = Remote({"a": RemoteKV(tokens=8)}, num_blocks=9)
    remote.add("a", 9, 1)
    remote.step()
    remote.scheduler.abort("a")
    remote.step()
    remote.add("b", 14, 1)
    remote.step()

    found = remote.explained("b")
    assert found.holders == (Holder("a", Doing.LOADING_STILL, blocks=4, alone=4),)
    assert found.events == (Event(Kind.SENT, "a"),)


def stranded(profile: Profile) -> Remote:
    """Return a scheduler at the freeze of vllm#57841: a head that needs what a loaded one holds."""
    entries = {"a": RemoteKV(tokens=0, unknown=1), "b": RemoteKV(tokens=20)}
    remote = Remote(entries, num_blocks=15, profile=profile)
    remote.add("a", 16)
    remote.add("b", 21)
    remote.step()
    remote.step(received=["b"])
    return remote


@pytest.mark.rule("vllm#57841")
def test_a_strand_names_both_sides() -> None:
    """The head says who holds what it needs; the holder, that it could go on were it the first."""
    remote = stranded(Profile.vllm_0_25_1())
    remote.step()

    head, holder = remote.explained("a"), remote.explained("b")
    assert head.demand is not None
    assert (head.demand.needed, head.demand.free) == (8, 4)
    assert head.holders == (Holder("b", Doing.LANDED, blocks=10, alone=10),)
    assert (head.is_frozen, head.abortable) == (True, ("a", "b"))
    assert (holder.behind, holder.is_held_up, holder.own) == ("a", True, None)
    assert "Were b looked at first, it could go on at once." in str(holder)
    assert [[e.request_id for e in found] for found in remote.frozen] == [["a", "b"]]
    assert remote.frozen == [[head, holder]]
    assert remote.scheduler.abort("a") == ["a"]
    assert not remote.explained("b").is_frozen


def test_a_safe_profile_does_not_strand() -> None:
    """The same calls under the default: the loaded request goes first, and both come to an end."""
    remote = stranded(Profile())
    for _ in range(20):
        assert not any(found.is_frozen for found in remote.scheduler.explain_all())
        remote.step()

    assert not remote.scheduler.has_work()
    assert remote.frozen == []


def test_a_reservation_for_itself_is_named() -> None:
    """Under the reference's rules a load that is tried again is refused for its own sake (X1)."""
    remote = Remote({"a": RemoteKV(tokens=8)}, num_blocks=8, profile=Profile.vllm_0_25_1())
    remote.add("a", 10)
    remote.step()
    blocks = remote.scheduler.block_ids("a")
    remote.connector._loaded.clear()
    remote.step(received=["a"], failed_blocks=blocks)
    remote.step()

    found = remote.explained("a")
    assert found.demand == Demand("await_load_regardless", Quantity.BLOCKS, 4, 7, reserved=5)
    assert found.holders == (Holder("a", Doing.WAITS, blocks=0, reserved=5),)
    assert (found.is_frozen, found.abortable) == (True, ("a",))
    assert "a has 0 blocks, 5 blocks reserved and waits" in str(found)
