"""A disk that hangs: loads from it are given up, and what comes late is written nowhere."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kvproof.runtime.connectors.folder import FolderConnector

pytestmark = pytest.mark.usefixtures("no_new_threads")

TIMEOUT_S = 0.02


class Disk:
    """Reads of a connector wait while `answers` is not set, but for the first `prompt` of them."""

    def __init__(self, connector: FolderConnector, prompt: int = 0) -> None:
        """Hang from now on."""
        self.answers, self._prompt = threading.Event(), prompt
        self._read, self._connector = connector._folder.read, connector
        connector._folder.read = self._wait_and_read  # type: ignore[method-assign]

    def _wait_and_read(self, block_hash: bytes, like: Tensor) -> Tensor:
        self._prompt -= 1
        assert self._prompt >= 0 or self.answers.wait(timeout=60)
        return self._read(block_hash, like)

    def recover(self) -> None:
        """Answer, and wait until every read that was given up is over."""
        self.answers.set()
        while self._connector._loads.is_hanging():
            pass


@pytest.fixture
def connector(rig: Any, tmp_path: Path) -> Iterator[FolderConnector]:
    """Return a connector of one thread that has written blocks 1 and 2, in a pool that is clear."""
    made = FolderConnector(
        rig.pool, tmp_path, model="tiny", num_load_threads=1, load_timeout_seconds=TIMEOUT_S
    )
    rig.fill(1, 2)
    made.written(rig.hashes(1, 2), [1, 2])
    made.flush()
    rig.clear()
    yield made
    made.close()


def load(connector: FolderConnector, rig: Any, name: str = "a", first: int = 7) -> None:
    """Start a load of blocks 1 and 2 into two others."""
    assert connector.match(name, rig.hashes(1, 2), 8, 0) == (8, True)
    connector.allocated(name, [first, first + 1], 0, 8)


@pytest.mark.parametrize("prompt", [0, 1], ids=["the first read", "the second read"])
def test_a_load_that_hangs_is_lost(
    rig: Any, connector: FolderConnector, caplog: pytest.LogCaptureFixture, prompt: int
) -> None:
    """It ends once, after its time, and what is read afterwards stays out of the pool."""
    disk = Disk(connector, prompt)
    load(connector, rig)

    assert rig.ends(connector).lost == {"a"}
    assert connector.statistics().loads_lost == 1
    assert "took more than 0.02 s and is given up" in caplog.text
    rig.clear()
    disk.recover()
    assert rig.is_clear(7, 8)
    assert not connector.poll()


def test_nothing_is_asked_of_a_disk_that_hangs(rig: Any, connector: FolderConnector) -> None:
    """Until it answers nothing is offered and nothing written; then all is as it was."""
    disk = Disk(connector)
    load(connector, rig)
    rig.ends(connector)

    assert connector.match("b", rig.hashes(1, 2), 8, 0) == (0, False)
    connector.written(rig.hashes(3), [3])
    assert connector.statistics().writes_dropped == 1
    disk.recover()
    contents = rig.fill(1, 2)
    load(connector, rig, "b")
    assert rig.ends(connector).received == {"b"}
    assert rig.holds([7, 8], contents)


def test_who_waits_behind_a_load_that_hangs_is_lost_too(
    rig: Any, connector: FolderConnector
) -> None:
    """A load that has not begun in time never begins."""
    disk = Disk(connector)
    load(connector, rig, "a")
    load(connector, rig, "b", 9)

    assert rig.ends(connector, 2).lost == {"a", "b"}
    disk.recover()
    assert rig.is_clear(7, 8, 9, 10)
    assert connector.statistics().blocks_loaded == 0


def test_a_load_that_writes_is_waited_for(rig: Any, connector: FolderConnector) -> None:
    """Nobody is told that a load is over while its thread writes, however long that takes."""
    writes, goes_on = threading.Event(), threading.Event()
    after = connector._memory.after

    def wait_and_order(mark: Any) -> Any:
        writes.set()
        assert goes_on.wait(timeout=60)
        return after(mark)

    connector._memory.after = wait_and_order  # type: ignore[method-assign]
    load(connector, rig)
    assert writes.wait(timeout=60)

    (running,) = connector._loads._running.values()
    while running.deadline > time.monotonic():
        pass
    assert not connector.poll()
    goes_on.set()
    ended = rig.ends(connector)
    assert ended.received | ended.lost == {"a"}


def test_close_does_not_wait_for_ever(
    rig: Any, connector: FolderConnector, caplog: pytest.LogCaptureFixture
) -> None:
    """After its time a load that hangs is left alone; it is lost, and writes nothing."""
    disk = Disk(connector)
    load(connector, rig)
    own = [thread for thread in threading.enumerate() if "folder-load" in thread.name]

    connector.close()

    assert "1 threads hang" in caplog.text
    assert connector.poll().lost == {"a"}
    disk.recover()
    for thread in own:
        thread.join(timeout=60)
    assert rig.is_clear(7, 8)


def test_a_load_that_ends_in_time_is_received(rig: Any, tmp_path: Path) -> None:
    """With time enough nothing is lost, and waiting for ever can be asked for."""
    made = FolderConnector(rig.pool, tmp_path, model="tiny", load_timeout_seconds=float("inf"))
    contents = rig.fill(1)
    made.written(rig.hashes(1), [1])
    made.flush()
    made.match("a", rig.hashes(1), 4, 0)
    made.allocated("a", [7], 0, 4)

    assert rig.ends(made).received == {"a"}
    assert torch.equal(rig.pool.storage[7], contents[0])
    made.close()
