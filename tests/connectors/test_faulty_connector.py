"""Faults on purpose: each kind occurs, each load still ends once, and what failed is poisoned."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.runtime.connector import NOTHING_HAPPENED, Connector, TransferReport
from kvproof.runtime.connectors.folder import FolderConnector
from kvproof.runtime.connectors.host_memory import HostMemoryConnector
from kvproof.runtime.kv_pool import KVPool
from kvproof.verify.connector_faults import Choose, ConnectorFaults
from kvproof.verify.faulty_connector import FaultyConnector
from kvproof.verify.torn_files import TornFiles

pytestmark = pytest.mark.usefixtures("no_new_threads")

POLLS_MAX = 200
NO_FAULTS = ConnectorFaults()
ALL_FAULTS = ConnectorFaults.all_kinds(30)


class PlainConnector:
    """A connector that loads ones at once, ends each load at the next poll, and has no fault."""

    def __init__(self, pool: KVPool, *, asynchronous: bool = True) -> None:
        """Load into the blocks of `pool`, asynchronously or not."""
        self._pool, self._asynchronous = pool, asynchronous
        self._report = TransferReport()
        self.calls: Counter[str] = Counter()

    def match(
        self,
        request_id: str,
        block_hashes: Sequence[bytes],
        num_tokens: int,
        num_computed_tokens: int,
    ) -> tuple[int | None, bool]:
        """Offer every token."""
        self.calls["match"] += 1
        return num_tokens - num_computed_tokens, self._asynchronous

    def allocated(
        self, request_id: str, block_ids: Sequence[int], first_token: int, num_tokens: int
    ) -> None:
        """Fill the table with ones."""
        self.calls["allocated"] += 1
        for block in block_ids:
            self._pool.storage[block] = 1.0
        if self._asynchronous:
            self.add(TransferReport(received=[request_id]))

    def written(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Count the call."""
        self.calls["written"] += 1

    def evicted(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Count the call."""
        self.calls["evicted"] += 1

    def preempted(self, request_id: str, block_ids: Sequence[int]) -> None:
        """Count the call."""
        self.calls["preempted"] += 1

    def finished(self, request_id: str, block_ids: Sequence[int]) -> bool:
        """Keep the blocks of a request until the next poll."""
        self.calls["finished"] += 1
        self.add(TransferReport(sent=[request_id]))
        return True

    def aborted(self, request_id: str) -> None:
        """Count the call."""
        self.calls["aborted"] += 1

    def add(self, report: TransferReport) -> None:
        """Say more in the next report."""
        self._report = TransferReport(
            received=self._report.received | report.received,
            sent=self._report.sent | report.sent,
            failed_blocks=self._report.failed_blocks | report.failed_blocks,
            lost=self._report.lost | report.lost,
        )

    def poll(self) -> TransferReport:
        """Return what was added."""
        report, self._report = self._report, TransferReport()
        return report

    def has_pending_transfers(self) -> bool:
        """Return whether a report waits."""
        return bool(self._report)

    def close(self) -> None:
        """Count the call."""
        self.calls["close"] += 1


class Bench:
    """A faulty connector around a plain one, driven by hand, and all that it has reported."""

    def __init__(
        self,
        device: torch.device,
        choose: Choose,
        faults: ConnectorFaults = NO_FAULTS,
        *,
        asynchronous: bool = True,
    ) -> None:
        """Make both, around a pool in debug mode."""
        self.pool = KVPool(1, 41, 1, 2, 4, device=device, debug=True)
        self.inner = PlainConnector(self.pool, asynchronous=asynchronous)
        self.faulty = FaultyConnector(self.inner, choose, self.pool, faults)
        self.reports: list[TransferReport] = []

    def ask(self, name: str) -> int | None:
        """Ask until there is an answer, of 8 tokens."""
        for _ in range(POLLS_MAX):
            tokens, _ = self.faulty.match(name, [], 8, 0)
            if tokens is not None:
                return tokens
        raise AssertionError(f"{name} was asked to ask again {POLLS_MAX} times")

    def load(self, name: str, table: Sequence[int]) -> None:
        """Start the load of a request."""
        assert self.ask(name) == 8
        self.faulty.allocated(name, table, 0, 8)

    def poll(self, times: int = 1) -> TransferReport:
        """Poll, and return the last report, if any."""
        for _ in range(times):
            self.reports.append(self.faulty.poll())
        return self.reports[-1] if self.reports else NOTHING_HAPPENED

    def drain(self) -> None:
        """Poll until nothing is pending, and on until no noise is left either."""
        for _ in range(POLLS_MAX):
            if not self.faulty.has_pending_transfers():
                self.poll(times=20)
                return
            self.poll()
        raise AssertionError(f"still pending after {POLLS_MAX} polls")

    def ends(self) -> list[str]:
        """Return whose load has been said to have ended, in order of the reports."""
        return [name for report in self.reports for name in sorted(report.received | report.lost)]

    def poisoned(self) -> set[int]:
        """Return the blocks that hold NaN and that a load has been given."""
        storage = self.pool.storage
        return {block for block in range(1, 41) if bool(storage[block].isnan().all())}


def first(count: int) -> int:
    """Choose the first of several."""
    return 0 * count


def last(count: int) -> int:
    """Choose the last of several."""
    return count - 1


# --- Each kind of fault ---------------------------------------------------------------------------


def test_without_faults_everything_is_passed_on(device: torch.device) -> None:
    """With all switches off the wrapper says what its connector says, when it says it."""
    bench = Bench(device, last)
    connector: Connector = bench.faulty

    bench.load("a", [1, 2])
    assert connector.has_pending_transfers()
    assert connector.poll() == TransferReport(received=["a"])
    connector.written([b""], [1])
    connector.evicted([b""], [1])
    connector.preempted("a", [1, 2])
    assert connector.finished("a", [1, 2])
    bench.inner.add(TransferReport(lost=["b"], failed_blocks=[9]))
    assert connector.poll() == TransferReport(sent=["a"], lost=["b"], failed_blocks=[9])
    connector.close()

    assert not connector.has_pending_transfers()
    assert +bench.faulty.counts == Counter()
    assert set(bench.inner.calls.values()) == {1}
    assert len(bench.inner.calls) == 7


def test_asking_again_ends(device: torch.device) -> None:
    """A request is told to ask again, but not for ever, and its connector does not hear of it."""
    bench = Bench(device, first, ConnectorFaults(asked_again=100, asked_again_max=2))

    answers = [bench.faulty.match("a", [], 8, 0)[0] for _ in range(6)]

    assert answers == [None, None, 8, None, None, 8]
    assert bench.faulty.counts["asked_again"] == 4
    assert bench.inner.calls["match"] == 2


def test_an_end_is_delayed(device: torch.device) -> None:
    """A delayed end comes a few polls later, and until then the loop must stay awake."""
    bench = Bench(device, last, ConnectorFaults(delayed=100, delay_polls_max=3))
    bench.load("a", [1, 2])

    bench.poll(times=3)
    assert bench.ends() == []
    assert bench.faulty.has_pending_transfers()
    assert bench.poll() == TransferReport(received=["a"])
    assert not bench.faulty.has_pending_transfers()
    assert bench.faulty.counts["delayed"] == 1


def test_an_end_is_overtaken(device: torch.device) -> None:
    """A reordered end comes after one that became known later, or alone when none does."""
    bench = Bench(device, first, ConnectorFaults(reordered=100, delay_polls_max=3))
    bench.load("a", [1, 2])
    bench.poll()
    bench.faulty._faults = NO_FAULTS
    bench.load("b", [3, 4])
    bench.drain()
    bench.faulty._faults = ConnectorFaults(reordered=100, delay_polls_max=3)
    bench.load("c", [5, 6])
    bench.drain()

    assert bench.ends() == ["b", "a", "c"]
    assert bench.faulty.counts["reordered"] == 1


@pytest.mark.parametrize(
    "report",
    [TransferReport(received=["a"]), TransferReport(sent=["a"]), TransferReport(lost=["a"])],
    ids=["received", "sent", "lost"],
)
def test_an_end_is_repeated(device: torch.device, report: TransferReport) -> None:
    """An end of any kind is said twice, and nobody is kept awake for the second time."""
    bench = Bench(device, first, ConnectorFaults(duplicated=100))
    bench.inner.add(report)

    bench.poll()
    assert not bench.faulty.has_pending_transfers()
    bench.poll(times=10)

    assert bench.reports[:2] == [report, report]
    assert not any(bench.reports[2:])
    assert bench.faulty.counts["duplicated"] == 1


def test_a_stale_end_is_withheld_from_a_newer_transfer(device: torch.device) -> None:
    """The repeated end of an earlier load or send never passes for the end of the next one."""
    bench = Bench(device, last, ConnectorFaults(duplicated=100, delay_polls_max=9))
    bench.load("a", [1, 2])
    bench.faulty.finished("a", [])
    bench.poll()
    bench.faulty._faults = ConnectorFaults(delayed=100, delay_polls_max=30)
    bench.load("a", [3, 4])
    bench.faulty.finished("a", [])

    bench.poll(times=30)

    assert bench.ends() == ["a"]
    assert not any(bench.reports[1:])
    assert bench.faulty.has_pending_transfers()
    assert bench.poll() == TransferReport(received=["a"], sent=["a"])


def test_a_dropped_end_is_lost(device: torch.device) -> None:
    """A load without an end is reported as lost after the declared polls, and left no data."""
    bench = Bench(device, first, ConnectorFaults(lost=100, lost_polls=5))
    bench.load("a", [1, 2])

    bench.poll(times=5)
    assert not any(bench.reports)
    assert bench.faulty.has_pending_transfers()
    assert bench.poll() == TransferReport(lost=["a"])
    assert {1, 2} <= bench.poisoned()
    assert bench.faulty.counts["lost"] == 1


@pytest.mark.parametrize("debug", [True, False])
@pytest.mark.parametrize(("choose", "named"), [(first, {1, 2}), (last, {2})])
def test_blocks_fail(device: torch.device, choose: Choose, named: set[int], debug: bool) -> None:
    """Failed blocks come with the end and hold NaN, and so do those behind the first."""
    bench = Bench(device, choose, ConnectorFaults(failed=100))
    if not debug:
        bench.faulty._pool = KVPool(1, 41, 1, 2, 4, device=device)
    bench.load("a", [1, 2])

    assert bench.poll() == TransferReport(received=["a"], failed_blocks=named)

    poisoned = bench.faulty._pool.storage[sorted(named)]
    assert bool(poisoned.isnan().all())
    assert bench.faulty.counts["failed"] == 1


def test_failed_blocks_come_early(device: torch.device) -> None:
    """Failed blocks are reported in a poll before that of the end, and not once more."""
    bench = Bench(device, first, ConnectorFaults(failed=100, failed_early=100))
    bench.load("a", [1, 2])

    assert bench.poll() == TransferReport(failed_blocks=[1, 2])
    assert bench.faulty.has_pending_transfers()
    assert bench.poll() == TransferReport(received=["a"])
    assert bench.faulty.counts["failed_early"] == 1


def test_failures_of_the_connector_itself_come_with_their_load(device: torch.device) -> None:
    """What the connector could not load is said with the end that is held back, and not before."""
    bench = Bench(device, first, ConnectorFaults(delayed=100))
    bench.load("a", [1, 2])
    bench.inner.add(TransferReport(failed_blocks=[2]))

    assert not bench.poll()
    assert bench.poll() == TransferReport(received=["a"], failed_blocks=[2])


def test_a_synchronous_load_fails_in_the_next_report(device: torch.device) -> None:
    """A load that is complete on return has no end signal, but it can still have failed."""
    bench = Bench(device, first, ConnectorFaults(failed=100), asynchronous=False)
    bench.load("a", [1, 2])

    assert bench.faulty.has_pending_transfers()
    assert {1, 2} <= bench.poisoned()
    assert bench.poll() == TransferReport(failed_blocks=[1, 2])
    assert not bench.faulty.has_pending_transfers()


def test_nobody_is_reported(device: torch.device) -> None:
    """Reports name requests that do not exist, in each part of the report."""
    bench = Bench(device, random.Random(1).randrange, ConnectorFaults(unknown=100))

    bench.poll(times=30)

    assert all(len(report.received | report.sent | report.lost) == 1 for report in bench.reports)
    assert all(
        any(getattr(r, part) for r in bench.reports) for part in ("received", "sent", "lost")
    )
    assert bench.faulty.counts["unknown"] == 30


# --- All of them at once --------------------------------------------------------------------------


def run_loads(bench: Bench, choose: Choose, count: int) -> None:
    """Start loads at chosen moments, then wait for all; each has two blocks of its own."""
    for number in range(count):
        bench.load(f"request-{number}", [1 + 2 * number, 2 + 2 * number])
        bench.poll(times=choose(3))
    bench.drain()


def check_ends(bench: Bench, count: int) -> None:
    """Demand one end for each load, but for the repetitions, and NaN where it was not loaded."""
    counts, known = bench.faulty.counts, {f"request-{number}" for number in range(count)}
    ends = [name for name in bench.ends() if name in known]
    assert set(ends) == known
    assert len(ends) == count + counts["duplicated"]
    failed = {block for report in bench.reports for block in report.failed_blocks}
    lost = {name for report in bench.reports for name in report.lost} & known
    for number in range(count):
        table = [1 + 2 * number, 2 + 2 * number]
        behind = next((table[i:] for i, block in enumerate(table) if block in failed), [])
        empty = table if f"request-{number}" in lost else behind
        assert bench.poisoned() & set(table) == set(empty)


# Public reports: vllm#43226, vllm#46283.
@pytest.mark.parametrize("seed", range(20))
def test_every_load_ends_once_under_all_faults(device: torch.device, seed: int) -> None:
    """Whatever is done to the signals, each load has one end, and only failed blocks hold NaN."""
    choose = random.Random(seed).randrange
    bench = Bench(device, choose, ALL_FAULTS)

    run_loads(bench, choose, 20)

    check_ends(bench, 20)


def test_every_kind_of_fault_occurs(device: torch.device) -> None:
    """With all switches on, no kind is hidden by the others; files are torn where there are any."""
    counts: Counter[str] = Counter()
    for seed in range(5):
        choose = random.Random(seed).randrange
        bench = Bench(device, choose, ALL_FAULTS)
        run_loads(bench, choose, 20)
        counts += bench.faulty.counts

    assert set(counts) == set(ConnectorFaults.names()) - {"torn"}


@settings(max_examples=50)
@given(data=st.data())
def test_faults_can_be_drawn(data: st.DataObject) -> None:
    """A choice of Hypothesis drives the faults as well as a seed does."""

    def choose(count: int) -> int:
        return data.draw(st.integers(0, count - 1))

    bench = Bench(torch.device("cpu"), choose, ALL_FAULTS)

    run_loads(bench, choose, 3)

    check_ends(bench, 3)


def test_the_same_seed_has_the_same_faults(device: torch.device) -> None:
    """Two runs with one seed report the same in every poll."""
    runs = []
    for _ in range(2):
        choose = random.Random(7).randrange
        bench = Bench(device, choose, ALL_FAULTS)
        run_loads(bench, choose, 10)
        runs.append(bench.reports)

    assert runs[0] == runs[1]


def test_calm_choices_have_no_faults(device: torch.device) -> None:
    """Where every choice is the first one, nothing goes wrong, so that examples shrink to that."""
    bench = Bench(device, first, ConnectorFaults.all_kinds(99))

    run_loads(bench, first, 5)

    assert +bench.faulty.counts == Counter()


# --- Around the real ones -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_torn_files_are_failed_blocks(rig: Any, tmp_path: Path, seed: int) -> None:
    """Around the folder, files are torn between promise and load, and no torn byte is loaded."""
    choose = random.Random(seed).randrange
    inner = FolderConnector(rig.pool, tmp_path, model="tiny")
    faults = ConnectorFaults(torn=60, delayed=30)
    faulty = FaultyConnector(inner, choose, rig.pool, faults, TornFiles(tmp_path))
    failures = 0
    for _ in range(12):
        contents = rig.fill(1, 2, 3)
        faulty.written(rig.hashes(1, 2, 3), [1, 2, 3])
        inner.flush()
        rig.clear()
        tokens, _ = faulty.match("a", rig.hashes(1, 2, 3), 12, 0)
        assert tokens == 12
        faulty.allocated("a", [7, 8, 9], 0, 12)
        failed = sorted(rig.ends(faulty).failed_blocks)
        loaded = 3 - len(failed)
        assert failed == [7, 8, 9][loaded:]
        assert rig.holds([7, 8, 9][:loaded], contents[:loaded])
        assert not failed or rig.is_clear(*failed)
        failures += bool(failed)
    faulty.close()

    assert faulty.counts["torn"] >= failures > 0


def test_there_is_nothing_to_tear_in_an_empty_folder(tmp_path: Path) -> None:
    """A hook that finds no file says so, and one that finds an empty file keeps it empty."""
    tear = TornFiles(tmp_path)
    assert not tear(first)
    (tmp_path / "a.safetensors").write_bytes(b"")
    assert tear(first)
    assert (tmp_path / "a.safetensors").read_bytes() == b""


@pytest.mark.parametrize("seed", range(5))
def test_host_memory_under_faults(rig: Any, seed: int) -> None:
    """Around host memory each load ends once, and only what is said to have failed is missing."""
    choose = random.Random(seed).randrange
    inner = HostMemoryConnector(rig.pool, 8)
    faults = ConnectorFaults(delayed=30, reordered=30, lost=30, failed=30, failed_early=30)
    faulty = FaultyConnector(inner, choose, rig.pool, faults)
    contents = rig.fill(1, 2, 3)
    faulty.evicted(rig.hashes(1, 2, 3), [1, 2, 3])
    rig.clear()
    tables = {"a": [1, 2, 3], "b": [4, 5, 6], "c": [7, 8, 9]}
    for name, table in tables.items():
        assert faulty.match(name, rig.hashes(1, 2, 3), 12, 0) == (12, True)
        faulty.allocated(name, table, 0, 12)

    report = rig.ends(faulty, 3)
    faulty.close()

    for name, table in tables.items():
        failed = [block in report.failed_blocks or name in report.lost for block in table]
        loaded = [*failed, True].index(True)
        assert rig.holds(table[:loaded], contents[:loaded])
        assert not table[loaded:] or rig.is_clear(*table[loaded:])


@pytest.mark.parametrize(
    ("given_faults", "message"),
    [
        ({"lost": 101}, "lost: got 101, expected 0"),
        ({"torn": -1}, "torn: got -1, expected 0"),
        ({"lost_polls": 0}, "lost_polls: got 0, expected at least 1"),
    ],
)
def test_settings_without_sense_are_refused(given_faults: dict[str, int], message: str) -> None:
    """A percentage beyond 100 or a wait that has no end is a mistake of whoever sets it."""
    with pytest.raises(ValueError, match=message):
        ConnectorFaults(**given_faults)
