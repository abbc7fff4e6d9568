"""The engine with a connector: what is loaded gives the tokens that computing gives."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from attrs import define, field
from torch import Tensor

from kvproof.runtime import CallerError, KVPool, SchedulerConfig
from kvproof.runtime.connector import NOTHING_HAPPENED, Connector, TransferReport
from kvproof.runtime.connectors.folder import FolderConnector
from kvproof.runtime.connectors.host_memory import HostMemoryConnector
from kvproof.runtime.connectors.observed import ObservedConnector
from kvproof.runtime.engine import InferenceEngine, generate, load_model
from kvproof.runtime.engine.content_keys import ContentKeys
from kvproof.runtime.engine.loaded_stamps import LoadedStamps
from kvproof.runtime.kv_pool import StaleRead
from kvproof.verify.connector_faults import ConnectorFaults
from kvproof.verify.faulty_connector import FaultyConnector
from kvproof.verify.torn_files import TornFiles

PROMPTS = [
    [(37 * number + 5 * place) % 256 for place in range(12 + 3 * number)] for number in range(6)
]
MAX_TOKENS, BLOCKS = 14, 14
STEPS_MAX = 20_000
MODEL = load_model()
Make = Callable[[KVPool], Connector]


@pytest.fixture(autouse=True)
def no_new_threads() -> Iterator[None]:
    """Fail if a thread that the test started is still there at its end."""
    before = set(threading.enumerate())
    yield
    started = [thread for thread in threading.enumerate() if thread not in before]
    for thread in started:  # One that was held up on purpose ends as soon as it is let go.
        thread.join(5)
    assert [thread.name for thread in started if thread.is_alive()] == []


@pytest.fixture(scope="module")
def alone() -> dict[str, list[int]]:
    """Return what each prompt gives when nothing is scheduled."""
    return {
        f"request-{number}": generate(MODEL, prompt, MAX_TOKENS, ignore_eos=True)
        for number, prompt in enumerate(PROMPTS)
    }


@define
class Reply:
    """What came of a run: tokens by request, who was aborted, and how often somebody made room."""

    tokens: dict[str, list[int]] = field(factory=lambda: defaultdict(list))
    aborted: set[str] = field(factory=set)
    preemptions: int = 0


def run(make: Make, steps: int = 1, aborts: Random | None = None, **limits: Any) -> Reply:
    """Run every prompt in a small pool in debug mode; check that each block comes back."""
    usual: dict[str, Any] = {"enable_prefix_caching": True, "max_steps_in_flight": steps}
    config = SchedulerConfig(
        num_blocks=BLOCKS + 1, block_size=4, max_model_len=64, **(usual | limits)
    )
    engine = InferenceEngine.build(MODEL, config, make_connector=make, debug=True)
    try:
        reply = played(engine, aborts)
    finally:
        engine.close()
    assert engine.scheduler.statistics().num_free_blocks == BLOCKS
    assert not engine.scheduler.has_work()
    return reply


def played(engine: InferenceEngine, aborts: Random | None) -> Reply:
    """Add every prompt and step until there is nothing to do; abort somebody now and then."""
    for prompt in PROMPTS:
        engine.add(prompt, MAX_TOKENS, ignore_eos=True)
    reply = Reply()
    for _ in range(STEPS_MAX):
        if not engine.scheduler.has_work():
            break
        if aborts is not None and not aborts.randrange(15):
            name = f"request-{aborts.randrange(len(PROMPTS))}"
            reply.aborted.update(engine.scheduler.abort(name))
        for output in engine.step():
            reply.tokens[output.request_id] += output.new_token_ids
    reply.preemptions = engine.scheduler.statistics().num_preemptions
    return reply


def check(reply: Reply, alone: dict[str, list[int]]) -> None:
    """Compare every reply with that of the request alone; one that was cut short begins so."""
    for name, whole in alone.items():
        expected = whole[: len(reply.tokens[name])] if name in reply.aborted else whole
        assert reply.tokens[name] == expected, name


class Watched(ObservedConnector):
    """A connector that counts tokens that were loaded."""

    tokens_loaded = 0

    def load_ended(self, load: object, num_valid: int) -> None:
        """Count them."""
        self.tokens_loaded += num_valid


def faulty(inner: Connector, pool: KVPool, seed: int, folder: Path | None = None) -> Connector:
    """Return a connector with all faults."""
    tear = None if folder is None else TornFiles(folder)
    kinds = ConnectorFaults.all_kinds(15)
    return FaultyConnector(inner, Random(seed).randrange, pool, kinds, tear)


# --- Equality -------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2])
def test_blocks_come_back_from_host_memory(steps: int, alone: dict[str, list[int]]) -> None:
    """Preempted requests load what the pool had to give up, and sample what they sample alone."""
    watched: list[Watched] = []

    def make(pool: KVPool) -> Connector:
        watched.append(Watched(HostMemoryConnector(pool, 64), pool.block_size))
        return watched[0]

    reply = run(make, steps)

    check(reply, alone)
    assert reply.preemptions > 0
    assert watched[0].tokens_loaded > 0


@pytest.mark.parametrize("steps", [1, 2])
def test_a_second_run_loads_what_the_first_has_written(
    steps: int, alone: dict[str, list[int]], tmp_path: Path
) -> None:
    """An engine that finds the prompts in the folder computes less and samples the same."""
    connectors: list[FolderConnector] = []

    def make(pool: KVPool) -> Connector:
        connectors.append(FolderConnector(pool, tmp_path, model="tiny"))
        return connectors[-1]

    for _ in range(2):
        check(run(make, steps), alone)

    prompts = sum(len(prompt) // 4 for prompt in PROMPTS)
    assert connectors[1].statistics().blocks_loaded >= prompts
    assert connectors[1].statistics().files_unusable == 0


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_faults_of_host_memory_change_no_token(
    seed: int, steps: int, alone: dict[str, list[int]]
) -> None:
    """Loads that are late, lost, failed or reported twice, and aborts, leave the others alone."""
    check(
        run(lambda pool: faulty(HostMemoryConnector(pool, 64), pool, seed), steps, Random(seed)),
        alone,
    )


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_faults_of_a_folder_change_no_token(
    seed: int, steps: int, alone: dict[str, list[int]], tmp_path: Path
) -> None:
    """Neither do they with a folder of which files are torn."""

    def make(pool: KVPool) -> Connector:
        return faulty(FolderConnector(pool, tmp_path, model="tiny"), pool, seed, tmp_path)

    for _ in range(2):
        check(run(make, steps, Random(seed)), alone)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_folder_that_hangs_changes_no_token(
    steps: int, alone: dict[str, list[int]], tmp_path: Path
) -> None:
    """Loads that are given up are computed instead, and what is read late reaches no block."""
    connectors: list[FolderConnector] = []

    def make(pool: KVPool) -> Connector:
        connector = FolderConnector(pool, tmp_path, model="tiny", load_timeout_seconds=0.01)
        connectors.append(connector)
        read = connector._folder.read

        def wait_and_read(block_hash: bytes, like: Tensor) -> Tensor:
            if len(connectors) == 2:
                time.sleep(0.1)
            return read(block_hash, like)

        connector._folder.read = wait_and_read  # type: ignore[method-assign]
        return connector

    check(run(make, steps), alone)
    check(run(make, steps), alone)
    assert connectors[1].statistics().loads_lost > 0


@pytest.mark.parametrize("steps", [1, 2])
def test_a_folder_with_a_limit_changes_no_token(
    steps: int, alone: dict[str, list[int]], tmp_path: Path
) -> None:
    """Files that go while somebody wants to load them are computed instead."""
    connectors: list[FolderConnector] = []

    def make(pool: KVPool) -> Connector:
        limit = 12 * pool.block_bytes
        connectors.append(FolderConnector(pool, tmp_path, model="tiny", max_bytes=limit))
        return connectors[-1]

    for _ in range(2):
        check(run(make, steps), alone)
    assert connectors[0].statistics().files_removed > 0


@pytest.mark.parametrize("limits", [{}, {"enable_prefix_caching": False}], ids=str)
@pytest.mark.parametrize("steps", [2, 3])
def test_steps_in_flight_change_no_token(
    steps: int, limits: dict[str, Any], alone: dict[str, list[int]]
) -> None:
    """A request that runs ahead of its samples gets the tokens that it gets step by step."""
    reply = run(lambda pool: HostMemoryConnector(pool, 64), steps, **limits)

    check(reply, alone)
    assert reply.preemptions > 0


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_running_ahead_needs_no_connector(
    steps: int, temperature: float, device: torch.device
) -> None:
    """Without a connector, too, steps in flight change no token; stop tokens are obeyed."""
    model = load_model(device=device)
    config = SchedulerConfig(
        num_blocks=BLOCKS + 1, block_size=4, max_model_len=64, max_steps_in_flight=steps
    )
    engine = InferenceEngine.build(model, config, debug=True)
    for prompt in PROMPTS:
        engine.add(prompt, MAX_TOKENS, temperature=temperature, seed=7)

    assert engine.run() == {
        f"request-{number}": generate(model, prompt, MAX_TOKENS, temperature=temperature, seed=7)
        for number, prompt in enumerate(PROMPTS)
    }
    assert engine.scheduler.statistics().num_preemptions > 0


def test_a_failed_load_can_fail_its_request(alone: dict[str, list[int]]) -> None:
    """With the policy `fail` a request ends with its load, and the others do not notice."""

    def make(pool: KVPool) -> Connector:
        faults = ConnectorFaults(failed=100)
        return FaultyConnector(HostMemoryConnector(pool, 64), Random(0).randrange, pool, faults)

    reply = run(make, kv_load_failure_policy="fail")

    short = [name for name, whole in alone.items() if len(reply.tokens[name]) < len(whole)]
    assert 0 < len(short) < len(alone)
    for name, whole in alone.items():
        assert reply.tokens[name] == whole[: len(reply.tokens[name])]


class SynchronousMemory(HostMemoryConnector):
    """Host memory whose loads are over when they have been started."""

    def match(self, *arguments: Any) -> tuple[int | None, bool]:
        """Offer what leaves a token to compute."""
        offered, _ = super().match(*arguments)
        room = (arguments[2] - arguments[3] - 1) // 4 * 4
        return min(offered or 0, room), False

    def allocated(self, *arguments: Any) -> None:
        """Load, and wait for the end."""
        super().allocated(*arguments)
        while self.has_pending_transfers():
            assert not super().poll().failed_blocks

    def poll(self) -> TransferReport:
        """Return nothing, for nothing is going on."""
        return NOTHING_HAPPENED


@pytest.mark.parametrize("percent", [0, 40])
@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_a_synchronous_load_may_fail(
    seed: int, steps: int, percent: int, alone: dict[str, list[int]]
) -> None:
    """What ran on a load that failed is taken back, and no token is different."""

    def make(pool: KVPool) -> Connector:
        faults = ConnectorFaults(failed=percent)
        choose = Random(seed).randrange
        return FaultyConnector(SynchronousMemory(pool, 64), choose, pool, faults)

    reply = run(make, steps)

    check(reply, alone)
    assert reply.preemptions > 0


# --- What is loaded is stamped --------------------------------------------------------------------


class Loads:
    """A connector that loads on demand: what `report` says has happened, and nothing else."""

    def __init__(self, *, is_asynchronous: bool) -> None:
        """Begin with nothing."""
        self.is_asynchronous, self.report = is_asynchronous, NOTHING_HAPPENED

    def match(self, *_: object) -> tuple[int | None, bool]:
        """Offer two blocks."""
        return 8, self.is_asynchronous

    def poll(self) -> TransferReport:
        """Return the report."""
        return self.report

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Do nothing else."""
        return lambda *_: None


TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5]
TABLE = [5, 2, 7]


def stamped(report: TransferReport | None) -> KVPool:
    """Return a pool after a load of eight tokens into blocks 5 and 2; None: a synchronous one."""
    pool = KVPool(1, 9, 1, 2, 4, debug=True)
    inner: Any = Loads(is_asynchronous=report is not None)
    connector = LoadedStamps(inner, pool, lambda name: TOKENS if name == "a" else [])
    connector.match("a", (), len(TOKENS), 0)
    connector.allocated("a", TABLE, 0, 8)
    inner.report = report or NOTHING_HAPPENED
    connector.poll()
    return pool


def read(pool: KVPool, tokens: int) -> None:
    """Verify that the first slots hold the first tokens."""
    keys = ContentKeys().of("a", TOKENS)[:tokens]
    table = torch.tensor([TABLE], dtype=torch.int32)
    pool.verify_owner(table, torch.tensor([tokens], dtype=torch.int32), torch.tensor([keys]))


@pytest.mark.parametrize(
    "report", [None, TransferReport(received=["a"]), TransferReport(received=["a", "unknown"])]
)
def test_what_is_loaded_can_be_read(report: TransferReport | None) -> None:
    """A synchronous load is stamped at once, and an asynchronous one when it has ended."""
    read(stamped(report), 8)
    with pytest.raises(StaleRead):
        read(stamped(report), 9)


@pytest.mark.parametrize(
    ("report", "tokens"),
    [
        (NOTHING_HAPPENED, 0),
        (TransferReport(lost=["a"]), 0),
        (TransferReport(received=["a"], failed_blocks=[5]), 0),
        (TransferReport(received=["a"], failed_blocks=[2]), 4),
        (TransferReport(received=["a"], failed_blocks=[7, 8]), 8),
    ],
    ids=str,
)
def test_what_is_not_loaded_is_a_stale_read(report: TransferReport, tokens: int) -> None:
    """A block that failed, or is behind one that did, is found before it is read."""
    pool = stamped(report)

    if tokens:
        read(pool, tokens)
    with pytest.raises(StaleRead, match="a slot that nobody has written"):
        read(pool, tokens + 1)


def test_a_failure_that_comes_early_counts(alone: dict[str, list[int]]) -> None:
    """A failed block may be reported before the end of its load."""
    pool = KVPool(1, 9, 1, 2, 4, debug=True)
    inner: Any = Loads(is_asynchronous=True)
    connector = LoadedStamps(inner, pool, lambda _: TOKENS)
    connector.match("a", (), len(TOKENS), 0)
    connector.allocated("a", TABLE, 0, 8)
    for inner.report in (TransferReport(failed_blocks=[2]), TransferReport(received=["a"])):
        connector.poll()

    read(pool, 4)
    with pytest.raises(StaleRead):
        read(pool, 5)


def test_a_scheduler_that_ignores_a_failure_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """If nobody takes note of failed blocks, the request that would read them is stopped."""
    monkeypatch.setattr("kvproof.runtime.transfers.Transfers.note_failures", lambda *_: [])

    def make(pool: KVPool) -> Connector:
        faults = ConnectorFaults(failed=100)
        return FaultyConnector(HostMemoryConnector(pool, 64), Random(0).randrange, pool, faults)

    with pytest.raises(StaleRead):
        run(make)


# --- Ends -----------------------------------------------------------------------------------------


def test_a_connector_is_closed_if_the_engine_cannot_be_built() -> None:
    """Whoever does not get an engine has nothing to close."""
    closed: list[str] = []

    class Closing(Loads):
        def close(self) -> None:
            closed.append("yes")

    def make(_: KVPool) -> Connector:
        connector: Any = Closing(is_asynchronous=True)
        return connector  # type: ignore[no-any-return]

    config = SchedulerConfig(num_blocks=9, block_size=4, max_model_len=4096)
    with pytest.raises(CallerError, match="the model's context is 2048"):
        InferenceEngine.build(MODEL, config, make_connector=make)
    assert closed == ["yes"]


def test_an_id_can_be_used_again_at_once() -> None:
    """A request with the id of one that has just ended has nothing of its stamps."""
    config = SchedulerConfig(num_blocks=15, block_size=4, max_model_len=64)
    engine = InferenceEngine.build(MODEL, config, debug=True)
    replies: list[Sequence[int]] = []
    for prompt in PROMPTS[:2]:
        engine.add(prompt, 2, request_id="again", ignore_eos=True)
        replies.append(engine.run()["again"])

    assert replies == [generate(MODEL, prompt, 2, ignore_eos=True) for prompt in PROMPTS[:2]]
