"""Both ends of a link in one process: what each says, and what it does to the pools."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch
from attrs import evolve
from torch._C._distributed_c10d import HashStore

from kvproof.runtime.connector import Connector, TransferReport
from kvproof.runtime.connectors import block_bytes, peer_prefill, peer_transport
from kvproof.runtime.connectors.peer_decode import PeerDecodeConnector
from kvproof.runtime.connectors.peer_group import PeerGone
from kvproof.runtime.connectors.peer_handshake import PeerMismatch
from kvproof.runtime.connectors.peer_message import Kind, Message
from kvproof.runtime.connectors.peer_prefill import PeerPrefillConnector
from kvproof.runtime.connectors.peer_settings import PeerSettings
from kvproof.runtime.connectors.recent_ids import RecentIds
from kvproof.runtime.kv_pool import KVPool, Layout

WAIT_SECONDS = 8.0
BLOCK_SIZE = 4
Found = TypeVar("Found")
NO_HASHES: tuple[bytes, ...] = ()


def new_pool(
    device: torch.device | str = "cpu", layout: Layout = "NHD", block_size: int = BLOCK_SIZE
) -> KVPool:
    """Return a small pool of zeros."""
    return KVPool(2, 9, 2, 4, block_size, device=device, layout=layout)


def fill(pool: KVPool, seed: int) -> None:
    """Fill all blocks of a pool but the null block with numbers of their own."""
    generator = torch.Generator().manual_seed(seed)
    pool.storage[1:] = torch.randn(pool.storage[1:].shape, generator=generator).to(pool.device)


def settings(**changes: Any) -> PeerSettings:
    """Return settings with short waits, with some changed."""
    return evolve(PeerSettings("tiny", peer_timeout_seconds=4.0), **changes)


class Pair:
    """A producer and a consumer that are linked, and their pools."""

    def __init__(
        self,
        device: torch.device | str = "cpu",
        layout: Layout = "NHD",
        limits: PeerSettings | None = None,
        is_remote: Callable[[str], bool] = peer_prefill.every_request,
    ) -> None:
        """Connect both; the producer's pool is full of numbers."""
        self.source, self.target = new_pool(device, layout), new_pool(device, layout)
        fill(self.source, seed=1)
        limits, store = limits or settings(), HashStore()
        with ThreadPoolExecutor(2) as executor:
            prefill = executor.submit(
                PeerPrefillConnector, self.source, store, limits, is_remote=is_remote
            )
            decode = executor.submit(
                PeerDecodeConnector, self.target, store, limits, is_remote=is_remote
            )
        self.prefill, self.decode = prefill.result(), decode.result()

    def announce(self, name: str = "a", num_tokens: int = 10, *blocks: int) -> bool:
        """Let the producer compute a prompt; return whether its blocks are kept."""
        self.prefill.match(name, NO_HASHES, num_tokens, 0)
        return self.prefill.finished(name, blocks or (3, 1, 2))

    def match(self, name: str = "a", num_tokens: int = 10, computed: int = 0) -> int:
        """Wait until the consumer knows, and return how many tokens it would load."""
        found = until(lambda: self.answer(name, num_tokens, computed))
        return found[0]

    def answer(self, name: str, num_tokens: int, computed: int) -> tuple[int, bool] | None:
        """Return the consumer's answer, or None for "ask again"."""
        number, is_asynchronous = self.decode.match(name, NO_HASHES, num_tokens, computed)
        assert is_asynchronous == (number != 0)
        return None if number is None else (number, is_asynchronous)

    def close(self) -> None:
        """End both."""
        with ThreadPoolExecutor(2) as executor:
            list(executor.map(lambda end: end.close(), (self.prefill, self.decode)))


def until(ask: Callable[[], Found | None]) -> Found:
    """Ask again and again until the answer is not empty."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := ask()):
        if time.monotonic() > deadline:
            pytest.fail(f"nothing has happened in {WAIT_SECONDS} s")
        time.sleep(0.005)
    return found


def report(end: Connector) -> TransferReport:
    """Wait for the next report that says something, and check that the one after it does not."""
    found = until(end.poll)
    assert not end.poll()
    return found


@pytest.fixture
def new_pair() -> Iterator[Callable[..., Pair]]:
    """Return the way to make pairs; they are closed, and no thread may be left."""
    pairs: list[Pair] = []

    def make(
        device: torch.device | str = "cpu",
        layout: Layout = "NHD",
        limits: PeerSettings | None = None,
        is_remote: Callable[[str], bool] = peer_prefill.every_request,
    ) -> Pair:
        pairs.append(Pair(device, layout, limits, is_remote))
        return pairs[-1]

    yield make
    for pair in pairs:
        pair.close()
    assert [t.name for t in threading.enumerate() if t.name.startswith("peer-")] == []


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_a_loaded_block_is_the_same_bytes(
    new_pair: Callable[..., Pair], device: torch.device, layout: Layout
) -> None:
    """Every loaded slot has the producer's bytes, no other slot changes, and both ends say so."""
    pair = new_pair(device, layout)
    assert pair.announce("a", 10, 3, 1, 2)

    assert pair.match("a", 10) == 10
    pair.decode.allocated("a", [5, 7, 6], 0, 10)
    assert report(pair.decode) == TransferReport(received={"a"})
    assert report(pair.prefill) == TransferReport(sent={"a"})

    expected = torch.zeros_like(pair.target.storage)
    expected[[5, 7]] = pair.source.storage[[3, 1]]
    expected[6, :, :, :2] = pair.source.storage[2, :, :, :2]
    assert torch.equal(pair.target.storage, expected)
    assert not pair.prefill.has_pending_transfers()
    assert not pair.decode.has_pending_transfers()


def test_only_the_promised_slots_are_written(new_pair: Callable[..., Pair]) -> None:
    """A load that begins and ends within blocks leaves the slots around it as they were."""
    pair = new_pair()
    fill(pair.target, seed=2)
    before = pair.target.storage.clone()
    pair.announce("a", 10, 3, 1, 2)

    assert pair.match("a", 9, computed=5) == 4
    pair.decode.allocated("a", [5, 7, 6], 5, 4)
    report(pair.decode)

    before[7, :, :, 1:] = pair.source.storage[1, :, :, 1:]
    before[6, :, :, :1] = pair.source.storage[2, :, :, :1]
    assert torch.equal(pair.target.storage, before)


def test_an_unannounced_prompt_is_waited_for(new_pair: Callable[..., Pair]) -> None:
    """The answer is "ask again" until the announcement comes, and the wait has an end."""
    pair = new_pair(limits=settings(announce_timeout_seconds=0.3))

    assert pair.decode.match("a", NO_HASHES, 10, 0) == (None, True)
    assert pair.match("a") == 0


# What vllm#53250 reports.
def test_a_load_is_one_shot(new_pair: Callable[..., Pair]) -> None:
    """A request that was preempted after its load is computed here, and nothing ends twice."""
    pair = new_pair()
    pair.announce()
    pair.match()
    pair.decode.allocated("a", [5, 7, 6], 0, 10)
    report(pair.decode)

    pair.decode.preempted("a", [5, 7, 6])

    assert pair.decode.match("a", NO_HASHES, 11, 0) == (0, False)
    pair.decode.allocated("a", [5, 7, 6], 0, 0)
    assert not pair.decode.poll()


# What vllm#56640 reports.
def test_a_promised_load_of_nothing_ends_once(new_pair: Callable[..., Pair]) -> None:
    """A request that was promised tokens and needs none is received once, and the peer let go."""
    pair = new_pair()
    pair.announce()
    pair.match()

    pair.decode.allocated("a", [5, 7, 6], 10, 0)

    assert pair.decode.has_pending_transfers()
    assert report(pair.decode) == TransferReport(received={"a"})
    assert report(pair.prefill) == TransferReport(sent={"a"})


def test_a_full_local_hit_loads_nothing(new_pair: Callable[..., Pair]) -> None:
    """A request that has all its tokens is not parked, and the peer gives its blocks back."""
    pair = new_pair()
    pair.announce()
    pair.match()

    assert pair.decode.match("a", NO_HASHES, 10, 10) == (0, False)
    pair.decode.allocated("a", [5, 7, 6], 10, 0)

    assert report(pair.prefill) == TransferReport(sent={"a"})
    assert not pair.decode.poll()


# What vllm#50719 reports.
def test_a_torn_block_is_reported_as_failed(
    new_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block whose checksum differs fails, with all behind it, and none of them is written."""
    pair = new_pair()

    def torn(rows: torch.Tensor) -> tuple[int, ...]:
        first, second, *rest = block_bytes.checksums(rows)
        return (first, second ^ 1, *rest)

    monkeypatch.setattr(peer_transport, "checksums", torn)
    pair.announce("a", 10, 3, 1, 2)
    pair.match()
    pair.decode.allocated("a", [5, 7, 6], 0, 10)

    assert report(pair.decode) == TransferReport(received={"a"}, failed_blocks={6, 7})
    assert torch.equal(pair.target.storage[5], pair.source.storage[3])
    assert not pair.target.storage[6:8].any()


# What trt#12542 reports.
@pytest.mark.parametrize("reads_later", [False, True])
def test_a_send_that_cannot_begin_is_said(
    new_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, reads_later: bool
) -> None:
    """If the producer cannot read its blocks the load is lost, and its blocks come back."""
    pair = new_pair()

    def fail(*_: object) -> torch.Tensor:
        raise RuntimeError("planted")

    monkeypatch.setattr(peer_transport.GlooTransport, "reads_later", reads_later)
    monkeypatch.setattr(peer_transport, "take_rows", fail)
    pair.announce()
    pair.match()
    pair.decode.allocated("a", [5, 7, 6], 0, 10)

    assert report(pair.decode) == TransferReport(lost={"a"})
    assert report(pair.prefill) == TransferReport(sent={"a"})


@pytest.mark.parametrize("says_so", [False, True])
def test_blocks_are_kept_while_the_consumer_reads_them(
    new_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, says_so: bool
) -> None:
    """A transport that reads later holds the blocks until it has read them, or has gone."""
    monkeypatch.setattr(peer_transport.GlooTransport, "reads_later", True)
    pair = new_pair()
    answers: list[Callable[[], None]] = []

    def keep(_: Any, __: Any, rows: torch.Tensor, deliver: peer_transport.Deliver) -> None:
        answers.append(lambda: deliver(rows))

    monkeypatch.setattr(peer_transport.GlooTransport, "unpack", keep)
    pair.announce()
    pair.match()
    pair.decode.allocated("a", [5, 7, 6], 0, 10)
    until(lambda: pair.prefill._kept["a"].stage is peer_prefill._Stage.READ)
    until(lambda: bool(answers))
    assert not pair.prefill.poll()

    if says_so:
        answers[0]()
        assert report(pair.decode) == TransferReport(received={"a"})
    else:
        pair.decode.close()
        assert report(pair.decode) == TransferReport(lost={"a"})
    assert report(pair.prefill) == TransferReport(sent={"a"})


def test_blocks_are_kept_while_they_are_being_sent(
    new_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that comes while the producer reads its blocks does not release them."""
    pair = new_pair()
    seen: list[TransferReport] = []

    def release_under_a_read(pool: KVPool, blocks: tuple[int, ...]) -> torch.Tensor:
        for name in ("a", "marker"):
            pair.decode._link.post(Message(Kind.RELEASE, name))
        until(lambda: "marker" in pair.prefill._unwanted)
        seen.append(pair.prefill.poll())
        return block_bytes.take_rows(pool, blocks)

    monkeypatch.setattr(peer_transport, "take_rows", release_under_a_read)
    pair.announce()
    pair.match()
    pair.decode.allocated("a", [5, 7, 6], 0, 10)

    assert report(pair.decode) == TransferReport(received={"a"})
    assert seen == [TransferReport()]
    assert report(pair.prefill) == TransferReport(sent={"a"})


def test_a_load_is_lost_as_soon_as_the_link_is_over(
    new_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load does not wait for its timeout once nobody is there to send."""
    monkeypatch.setattr(PeerPrefillConnector, "_serve", lambda *_: None)
    pair = new_pair()
    pair.announce()
    pair.match()
    pair.decode.allocated("a", [5, 7, 6], 0, 10)

    pair.prefill.close()

    assert report(pair.decode) == TransferReport(lost={"a"})


def test_a_second_announcement_is_released(new_pair: Callable[..., Pair]) -> None:
    """A prompt that is computed again under a name still in use here is not kept for long."""
    pair = new_pair()
    pair.announce()
    pair.match()
    pair.decode.allocated("a", [5, 7, 6], 0, 10)
    report(pair.decode)
    report(pair.prefill)

    assert pair.announce()

    until(lambda: not pair.decode._arrivals.empty())
    assert not pair.decode.poll()
    assert report(pair.prefill) == TransferReport(sent={"a"})


def test_whatever_is_posted_is_answered_once(new_pair: Callable[..., Pair]) -> None:
    """What is being sent at the end, what waits then and what comes later all get their answer."""
    pair = new_pair()
    link, answers = pair.prefill._link, list[bool]()
    has_begun, may_go_on = threading.Event(), threading.Event()

    def build() -> tuple[Message, None]:
        has_begun.set()
        may_go_on.wait(WAIT_SECONDS)
        return Message(Kind.HEARTBEAT), None

    link.post_later(build, answers.append)
    link.post_later(build, answers.append)
    has_begun.wait(WAIT_SECONDS)
    closing = threading.Thread(target=pair.close)
    closing.start()
    until(lambda: link.ended)
    may_go_on.set()
    closing.join()
    link.post_later(build, answers.append)

    assert answers == [True, False, False]


# What vllm#50754 reports.
@pytest.mark.parametrize("how", ["aborted", "too few blocks", "never scheduled"])
def test_an_incomplete_prompt_is_announced_as_failed(
    new_pair: Callable[..., Pair], how: str
) -> None:
    """A prompt that was not computed to its end keeps nothing, and the consumer hears of it."""
    pair = new_pair()
    if how != "never scheduled":
        pair.prefill.match("a", NO_HASHES, 10, 0)
    if how == "aborted":
        pair.prefill.aborted("a")
    else:
        assert not pair.prefill.finished("a", [3, 1] if how == "too few blocks" else [3, 1, 2])

    assert pair.match("a") == 0
    assert not pair.prefill.has_pending_transfers()


# What vllm#50425 reports.
@pytest.mark.parametrize("order", ["finished first", "announced first", "never asked"])
def test_a_request_that_ends_before_its_load_releases_the_peer(
    new_pair: Callable[..., Pair], order: str
) -> None:
    """If the consumer drops a request, the producer keeps nothing for it, in either order."""
    pair = new_pair()
    if order == "announced first":
        assert pair.announce()
        pair.match()
    elif order == "finished first":
        pair.decode.match("a", NO_HASHES, 10, 0)

    assert not pair.decode.finished("a", [])

    if order == "announced first":
        assert report(pair.prefill) == TransferReport(sent={"a"})
    else:
        until(lambda: "a" in pair.prefill._unwanted)
        assert not pair.announce()


# What vllm#32255 reports.
def test_a_request_that_ends_during_its_load_gets_nothing_more(
    new_pair: Callable[..., Pair],
) -> None:
    """Data that arrives after the end of a request stays out of the pool; the load is lost once."""
    pair = new_pair()
    pair.announce()
    pair.match()
    pair.decode.allocated("a", [5, 7, 6], 0, 10)
    until(lambda: not pair.decode._arrivals.empty())

    assert not pair.decode.finished("a", [5, 7, 6])

    assert report(pair.decode) == TransferReport(lost={"a"})
    assert not pair.target.storage.any()


# What vllm#46283 reports.
def test_blocks_that_nobody_asks_for_come_back(new_pair: Callable[..., Pair]) -> None:
    """Kept blocks have a term; after it they are released and the consumer computes here."""
    pair = new_pair(limits=settings(keep_timeout_seconds=0.2))
    assert pair.announce()

    assert report(pair.prefill) == TransferReport(sent={"a"})
    until(lambda: pair.decode.match("a", NO_HASHES, 10, 0) == (0, False))


def test_a_load_that_takes_too_long_is_lost(
    new_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time a load is lost, and what comes later stays out of the pool."""
    pair = new_pair(limits=settings(transfer_timeout_seconds=0.2))
    may_go_on = threading.Event()

    def wait(pool: KVPool, blocks: tuple[int, ...]) -> torch.Tensor:
        may_go_on.wait(WAIT_SECONDS)
        return block_bytes.take_rows(pool, blocks)

    monkeypatch.setattr(peer_transport, "take_rows", wait)
    pair.announce()
    pair.match()
    pair.decode.allocated("a", [5, 7, 6], 0, 10)

    assert report(pair.decode) == TransferReport(lost={"a"})
    may_go_on.set()
    until(lambda: not pair.decode._arrivals.empty())
    assert not pair.decode.poll()
    assert not pair.target.storage.any()


def test_a_promise_that_was_taken_back_is_a_lost_load(new_pair: Callable[..., Pair]) -> None:
    """If the producer gives up between the promise and the load, the load is lost, not received."""
    pair = new_pair(limits=settings(keep_timeout_seconds=0.2))
    pair.announce()
    assert pair.match() == 10
    report(pair.prefill)
    pair.announce("b")  # what comes behind it shows that the failure has come
    assert pair.match("b") == 10

    pair.decode.allocated("a", [5, 7, 6], 0, 10)

    assert report(pair.decode) == TransferReport(lost={"a"})


def test_another_prompt_of_the_same_name_is_not_loaded(new_pair: Callable[..., Pair]) -> None:
    """If the hashes of both ends differ the request is computed here, and the peer let go."""
    pair = new_pair()
    pair.prefill.match("a", [b"first", b"second"], 10, 0)
    pair.prefill.finished("a", [3, 1, 2])

    until(lambda: pair.decode.match("a", [b"first", b"other"], 10, 0) == (0, False))

    assert report(pair.prefill) == TransferReport(sent={"a"})


def test_a_request_without_the_peer_is_nobodys_business(new_pair: Callable[..., Pair]) -> None:
    """A request in which the peer has no part is not waited for, and none of its blocks is kept."""
    pair = new_pair(is_remote=lambda name: name != "local")

    assert not pair.announce("local")
    assert pair.decode.match("local", NO_HASHES, 10, 0) == (0, False)
    pair.decode.allocated("local", [1, 2, 3], 0, 0)
    pair.decode.preempted("local", [1, 2, 3])
    assert not pair.decode.finished("local", [1, 2, 3])
    assert not pair.decode.poll()


def test_many_loads_at_once_keep_apart(new_pair: Callable[..., Pair]) -> None:
    """Loads that overlap in time each end once, with their own bytes."""
    pair = new_pair()
    for number in range(8):
        pair.announce(f"r{number}", 4, number + 1)
    for number in range(8):
        assert pair.match(f"r{number}", 4) == 4
        pair.decode.allocated(f"r{number}", [8 - number], 0, 4)

    received: list[str] = []
    sent: list[str] = []
    while len(received) < 8:
        received += until(pair.decode.poll).received
    while len(sent) < 8:
        sent += until(pair.prefill.poll).sent

    assert sorted(received) == sorted(sent) == [f"r{number}" for number in range(8)]
    assert torch.equal(pair.target.storage[1:], pair.source.storage[1:].flip(0))


@pytest.mark.parametrize("who", ["prefill", "decode"])
def test_goodbye_ends_everything_at_the_other_end(new_pair: Callable[..., Pair], who: str) -> None:
    """When one end closes, the other releases its blocks or computes here, at once."""
    pair = new_pair(limits=settings(peer_timeout_seconds=60.0))
    assert pair.announce()

    (pair.prefill if who == "prefill" else pair.decode).close()

    if who == "prefill":
        assert report(pair.prefill) == TransferReport(sent={"a"})
        assert pair.match("a") == 0
        assert pair.match("never announced") == 0
    else:
        assert report(pair.prefill) == TransferReport(sent={"a"})
        assert not pair.announce("b")


def test_a_name_can_be_used_again(new_pair: Callable[..., Pair]) -> None:
    """A new request under the name of one that has ended is loaded like any other."""
    pair = new_pair()
    for _ in range(2):
        pair.announce()
        assert pair.match() == 10
        pair.decode.allocated("a", [5, 7, 6], 0, 10)
        assert report(pair.decode) == TransferReport(received={"a"})
        assert report(pair.prefill) == TransferReport(sent={"a"})
        pair.decode.finished("a", [5, 7, 6])


@pytest.mark.parametrize("change", ["block_size", "layout", "model_name"])
def test_ends_that_differ_refuse_each_other(change: str) -> None:
    """Each end says what it saw, what it expected and what to do, before anything has moved."""
    store, here = HashStore(), settings()
    there = PeerSettings("other") if change == "model_name" else here
    other = new_pool(
        layout="HND" if change == "layout" else "NHD", block_size=8 if change == "block_size" else 4
    )
    with ThreadPoolExecutor(2) as executor:
        prefill = executor.submit(PeerPrefillConnector, new_pool(), store, here)
        decode = executor.submit(PeerDecodeConnector, other, store, there)
    errors = (prefill.exception(), decode.exception())
    ours, theirs = {"block_size": (4, 8), "layout": ("NHD", "HND")}.get(change, ("tiny", "other"))
    for error, own, seen in zip(errors, (ours, theirs), (theirs, ours), strict=True):
        assert isinstance(error, PeerMismatch)
        assert f"{change} is {seen!r} there, expected {own!r} as here" in str(error)
        assert "Start both ends with the same model" in str(error)


def test_a_peer_that_never_comes_is_named() -> None:
    """An end that waits alone fails after its time, and says what to do."""
    alone = settings(connect_timeout_seconds=0.5)

    with pytest.raises(PeerGone, match=r"did not come within 0\.5 s.*start both ends"):
        PeerDecodeConnector(new_pool(), HashStore(), alone)


def test_a_wait_without_an_end_is_refused() -> None:
    """Settings with a time of zero are refused, with the name of the time."""
    with pytest.raises(ValueError, match="keep_timeout_seconds: got 0"):
        PeerSettings("tiny", keep_timeout_seconds=0)


def test_old_ids_are_forgotten_first() -> None:
    """A set of recent ids does not grow without end."""
    recent = RecentIds(limit=2)
    for name in ("a", "b", "c"):
        recent.add(name)

    assert [name in recent for name in "abc"] == [False, True, True]
