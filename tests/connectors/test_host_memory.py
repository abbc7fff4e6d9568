"""Blocks kept in host memory: what comes back, what is kept, and that every load ends once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from kvproof.runtime.connector import Connector
from kvproof.runtime.connectors.host_blocks import HostBlocks
from kvproof.runtime.connectors.host_memory import HostMemoryConnector
from kvproof.runtime.errors import CallerError

pytestmark = pytest.mark.usefixtures("no_new_threads")

New = Callable[..., HostMemoryConnector]


@pytest.fixture
def new(rig: Any) -> Iterator[New]:
    """Return the function that makes a connector, which is closed at the end of the test."""
    made: list[HostMemoryConnector] = []

    def make(capacity_blocks: int = 8, pool: Any = None, **options: Any) -> HostMemoryConnector:
        made.append(HostMemoryConnector(pool or rig.pool, capacity_blocks, **options))
        return made[-1]

    yield make
    for connector in made:
        connector.close()


def gated(connector: HostMemoryConnector, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let loads wait on their thread until the event that is returned is set."""
    gate, fill = threading.Event(), connector._fill

    def wait_and_fill(*given: Any) -> Sequence[int]:
        assert gate.wait(timeout=60)
        return fill(*given)

    monkeypatch.setattr(connector, "_fill", wait_and_fill)
    return gate


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_come_back(new_rig: Any, new: New, dtype: torch.dtype, layout: str) -> None:
    """Evicted blocks are loaded into other blocks bit for bit, up to the last token."""
    rig = new_rig(dtype, layout)
    connector: Connector = new(pool=rig.pool)
    contents = rig.fill(1, 2, 3)
    connector.evicted(rig.hashes(1, 2, 3), [1, 2, 3])
    rig.clear()

    assert connector.match("a", rig.hashes(1, 2, 3), 12, 0) == (12, True)
    connector.allocated("a", [7, 5, 6], 0, 12)
    assert connector.has_pending_transfers()
    report = rig.ends(connector)

    assert report.received == {"a"}
    assert not report.failed_blocks
    assert rig.holds([7, 5, 6], contents)
    assert rig.is_clear(1, 2, 3, 4, 8, 9, 10, 11)


@pytest.mark.parametrize(
    ("known", "num_tokens", "num_computed_tokens", "answer"),
    [
        ((1, 2, 3), 14, 0, (12, True)),
        ((1, 2, 3), 14, 4, (8, True)),
        ((1, 2, 3), 11, 0, (8, True)),
        ((1, 2, 9, 3), 16, 0, (8, True)),
        ((1, 2, 9, 3), 16, 8, (0, False)),
        ((9, 1), 8, 0, (0, False)),
        ((1, 2, 3), 12, 12, (0, False)),
        ((1, 2, 3), 12, 2, (0, False)),
        ((), 3, 0, (0, False)),
    ],
)
def test_match_counts_whole_blocks_of_an_unbroken_chain(
    rig: Any,
    new: New,
    *,
    known: tuple[int, ...],
    num_tokens: int,
    num_computed_tokens: int,
    answer: tuple[int, bool],
) -> None:
    """The answer starts at the computed tokens and ends before the first block that is missing."""
    connector = new()
    rig.fill(1, 2, 3)
    connector.evicted(rig.hashes(1, 2, 3), [1, 2, 3])

    assert connector.match("a", rig.hashes(*known), num_tokens, num_computed_tokens) == answer


def test_the_least_recently_used_block_makes_room(rig: Any, new: New) -> None:
    """Never more blocks are kept than the capacity, and a block evicted again counts as used."""
    connector = new(capacity_blocks=2)
    rig.fill(1, 2, 3)

    connector.evicted(rig.hashes(1, 2), [1, 2])
    connector.evicted(rig.hashes(1), [1])
    connector.evicted(rig.hashes(3), [3])

    assert connector.num_blocks_kept == 2
    kept = [number for number in (1, 2, 3) if connector.match("a", rig.hashes(number), 4, 0)[0]]
    assert kept == [1, 3]


def test_a_loaded_chain_loses_its_tail_first(rig: Any, new: New) -> None:
    """After a load the head of the chain is the last to go, for the rest is nothing without it."""
    connector = new(capacity_blocks=3)
    rig.fill(1, 2, 3, 4)
    connector.evicted(rig.hashes(1, 2, 3), [1, 2, 3])
    connector.match("a", rig.hashes(1, 2, 3), 12, 0)
    connector.allocated("a", [7, 8, 9], 0, 12)
    rig.ends(connector)

    connector.evicted(rig.hashes(4), [4])

    assert connector.match("b", rig.hashes(1, 2, 3), 12, 0) == (8, True)


# Public report: vllm#35931.
def test_asking_holds_nothing(rig: Any, new: New) -> None:
    """However often a request is asked about, its blocks can be evicted until allocated."""
    connector = new(capacity_blocks=2)
    rig.fill(1, 2, 3, 4)
    connector.evicted(rig.hashes(1, 2), [1, 2])

    for _ in range(3):
        assert connector.match("a", rig.hashes(1, 2), 8, 0) == (8, True)
    connector.evicted(rig.hashes(3, 4), [3, 4])

    assert connector.match("a", rig.hashes(1, 2), 8, 0) == (0, False)


def test_what_was_promised_and_is_gone_fails(rig: Any, new: New) -> None:
    """A block that made room after match is a failed one, and so are those behind it."""
    connector = new(capacity_blocks=3)
    contents = rig.fill(1, 2, 3, 4)
    connector.evicted(rig.hashes(2, 1, 3), [2, 1, 3])
    connector.match("a", rig.hashes(1, 2, 3), 12, 0)
    connector.evicted(rig.hashes(4), [4])
    rig.clear()

    connector.allocated("a", [7, 8, 9], 0, 12)
    report = rig.ends(connector)

    assert report.received == {"a"}
    assert report.failed_blocks == {8, 9}
    assert rig.holds([7], contents[:1])
    assert rig.is_clear(8, 9)


def test_a_load_keeps_its_blocks(rig: Any, new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    """From allocated to its end a load's blocks stay, and what finds no room is not kept."""
    connector = new(capacity_blocks=2)
    gate = gated(connector, monkeypatch)
    contents = rig.fill(1, 2, 3)
    connector.evicted(rig.hashes(1, 2), [1, 2])
    for name, table in (("a", [7, 8]), ("b", [9, 10])):
        connector.match(name, rig.hashes(1, 2), 8, 0)
        connector.allocated(name, table, 0, 8)

    connector.evicted(rig.hashes(3), [3])
    assert connector.match("c", rig.hashes(3), 4, 0) == (0, False)
    gate.set()
    rig.ends(connector, 2)

    assert rig.holds([7, 8, 9, 10], contents[:2] * 2)
    connector.evicted(rig.hashes(3), [3])
    assert connector.match("c", rig.hashes(3), 4, 0) == (4, True)


# Public report: vllm#56640.
def test_a_load_of_no_blocks_ends_once(rig: Any, new: New) -> None:
    """An offer of which no token is taken has its end all the same, and fills nothing."""
    connector = new()
    rig.fill(1)
    connector.evicted(rig.hashes(1), [1])
    rig.clear()
    connector.match("a", rig.hashes(1), 4, 0)

    connector.allocated("a", [7], 4, 0)
    report = rig.ends(connector)

    assert report.received == {"a"}
    assert not report.failed_blocks
    assert rig.is_clear(7)


def test_who_was_offered_nothing_waits_for_nothing(rig: Any, new: New) -> None:
    """A request that the connector could not help has no end signal."""
    connector = new()

    connector.match("a", rig.hashes(1), 4, 0)
    connector.allocated("a", [7], 0, 0)
    connector.allocated("never asked about", [8], 0, 0)

    assert not connector.has_pending_transfers()
    assert not connector.poll()


def test_an_offer_is_taken_once(rig: Any, new: New) -> None:
    """What has been loaded is no longer on offer: a later call for the table alone has no end."""
    connector = new()
    rig.fill(1)
    connector.evicted(rig.hashes(1), [1])
    connector.match("a", rig.hashes(1), 4, 0)
    connector.allocated("a", [7], 0, 4)
    rig.ends(connector)

    connector.allocated("a", [7, 8], 4, 0)

    assert not connector.has_pending_transfers()


def test_the_last_answer_counts(rig: Any, new: New) -> None:
    """An offer that a later answer has taken back has no end, and cannot be loaded."""
    connector = new(capacity_blocks=1)
    rig.fill(1, 2)
    connector.evicted(rig.hashes(1), [1])
    assert connector.match("a", rig.hashes(1), 4, 0) == (4, True)
    connector.evicted(rig.hashes(2), [2])
    assert connector.match("a", rig.hashes(1), 4, 0) == (0, False)

    connector.allocated("a", [7], 0, 0)

    assert not connector.has_pending_transfers()


def test_a_pin_is_counted() -> None:
    """A block that two loads read stays until both have ended."""
    kept, block = HostBlocks(1), b"block"
    assert kept.add(block) == 0
    assert kept.pin([block]) == kept.pin([block, b"other"]) == [0]

    kept.unpin([block])
    assert kept.add(b"other") is None
    kept.unpin([block])

    assert kept.add(b"other") == 0
    assert block not in kept


def test_part_of_an_offer_can_be_taken(rig: Any, new: New) -> None:
    """A load may start later and end earlier than was offered; the last block comes whole."""
    connector = new()
    contents = rig.fill(1, 2, 3)
    connector.evicted(rig.hashes(1, 2, 3), [1, 2, 3])
    rig.clear()
    connector.match("a", rig.hashes(1, 2, 3), 12, 0)

    connector.allocated("a", [7, 8, 9], 4, 3)
    rig.ends(connector)

    assert rig.holds([8], contents[1:2])
    assert rig.is_clear(7, 9)


@pytest.mark.parametrize(
    ("table", "first_token", "num_tokens"),
    [([7, 8, 9], 4, 12), ([7, 8, 9], 0, 4), ([7, 8, 9], 5, 4), ([7, 8], 4, 8)],
)
def test_a_load_that_was_not_offered_is_refused(
    rig: Any, new: New, table: list[int], first_token: int, num_tokens: int
) -> None:
    """More than was offered, the middle of a block or too short a table is the caller's mistake."""
    connector = new()
    rig.fill(1, 2, 3)
    connector.evicted(rig.hashes(1, 2, 3), [1, 2, 3])
    connector.match("a", rig.hashes(1, 2, 3), 12, 4)

    with pytest.raises(CallerError, match=f"got a load of {num_tokens} tokens from token"):
        connector.allocated("a", table, first_token, num_tokens)

    assert not connector.has_pending_transfers()
    connector.allocated("a", [7, 8, 9], 4, 8)
    connector.close()


@pytest.mark.parametrize("way", ["preempted", "finished"])
def test_an_offer_ends_with_the_attempt(rig: Any, new: New, way: str) -> None:
    """After a preemption or the end of a request nothing is left of what it was offered."""
    connector = new()
    rig.fill(1)
    connector.evicted(rig.hashes(1), [1])
    connector.match("a", rig.hashes(1), 4, 0)

    assert not getattr(connector, way)("a", [])

    with pytest.raises(CallerError, match="load what the last match has offered"):
        connector.allocated("a", [7], 0, 4)


@pytest.mark.rule("vllm#32255")
def test_a_load_outlives_its_request(rig: Any, new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is aborted while it loads still gets its end, so that its blocks come back."""
    connector = new()
    gate = gated(connector, monkeypatch)
    rig.fill(1)
    connector.evicted(rig.hashes(1), [1])
    connector.match("a", rig.hashes(1), 4, 0)
    connector.allocated("a", [7], 0, 4)

    assert not connector.finished("a", [7])
    assert connector.has_pending_transfers()
    gate.set()

    assert rig.ends(connector).received == {"a"}


def test_a_second_load_of_a_request_is_refused(rig: Any, new: New) -> None:
    """While the end of a load is not reported, another one under its name would be mistaken."""
    connector = new()
    rig.fill(1)
    connector.evicted(rig.hashes(1), [1])
    connector.match("a", rig.hashes(1), 4, 0)
    connector.allocated("a", [7], 0, 4)
    connector.match("a", rig.hashes(1), 4, 0)

    with pytest.raises(CallerError, match="got a second load"):
        connector.allocated("a", [8], 0, 4)


# Public report: vllm#50719.
def test_an_error_in_a_load_is_an_end(
    rig: Any,
    new: New,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever is raised on the thread, the request gets its end and no block counts as loaded."""
    connector = new()
    rig.fill(1, 2)
    connector.evicted(rig.hashes(1, 2), [1, 2])

    def fail(*_: object) -> Sequence[int]:
        raise RuntimeError("the copy went wrong")

    monkeypatch.setattr(connector, "_fill", fail)
    connector.match("a", rig.hashes(1, 2), 8, 0)
    connector.allocated("a", [7, 8], 0, 8)
    report = rig.ends(connector)

    assert report.received == {"a"}
    assert report.failed_blocks == {7, 8}
    assert "the copy went wrong" in caplog.text


# Public report: vllm#30659.
def test_a_load_that_does_not_begin_in_time_is_lost(
    rig: Any, new: New, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who waits too long for the thread gets an end and nothing else; who is being served waits."""
    connector = new(load_timeout_seconds=0.02)
    gate, contents = gated(connector, monkeypatch), rig.fill(1)
    connector.evicted(rig.hashes(1), [1])
    rig.clear()
    for name, block in (("a", 7), ("b", 8)):
        connector.match(name, rig.hashes(1), 4, 0)
        connector.allocated(name, [block], 0, 4)
    lost = set[str]()
    while not lost:
        report = connector.poll()
        lost |= report.lost
        assert not report.received

    assert lost == {"b"}
    assert "a load for request b took more than 0.02 s" in caplog.text
    assert connector._kept._pins == {rig.hashes(1)[0]: 1}
    gate.set()
    assert rig.ends(connector).received == {"a"}
    assert rig.holds([7], contents)
    assert rig.is_clear(8)
    connector.match("b", rig.hashes(1), 4, 0)
    connector.allocated("b", [8], 0, 4)
    assert rig.ends(connector).received == {"b"}
    assert rig.holds([8], contents)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_a_timeout_that_is_none_is_refused(new: New, seconds: float) -> None:
    """A load that may take no time could never be made."""
    with pytest.raises(CallerError, match="load_timeout_seconds: got"):
        new(load_timeout_seconds=seconds)


def test_close_ends_the_thread_and_every_load(
    rig: Any, new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loads that have not run are reported as failed, and closing again changes nothing."""
    connector = new()
    gate = gated(connector, monkeypatch)
    rig.fill(1)
    connector.evicted(rig.hashes(1), [1])
    for name, block in (("a", 7), ("b", 8)):
        connector.match(name, rig.hashes(1), 4, 0)
        connector.allocated(name, [block], 0, 4)
    # The first load goes on only when close has given the second up.
    second = connector._loads._running["b"].outcome
    second.add_done_callback(lambda _: gate.set())

    connector.close()
    connector.close()
    report = connector.poll()

    assert report.received == {"a", "b"}
    assert report.failed_blocks == {8}
    assert not connector.has_pending_transfers()
    connector.match("c", rig.hashes(1), 4, 0)
    with pytest.raises(CallerError, match="after close"):
        connector.allocated("c", [9], 0, 4)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_below_one_is_refused(new: New, capacity: int) -> None:
    """A connector that can keep nothing is the caller's mistake."""
    with pytest.raises(CallerError, match=f"capacity_blocks: got {capacity}"):
        new(capacity)
