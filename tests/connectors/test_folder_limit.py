"""A folder with a limit: what was not used for longest goes first, and nothing that is read."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from kvproof.runtime.connectors.folder import FolderConnector

pytestmark = pytest.mark.usefixtures("no_new_threads")


class Folder:
    """Connectors that share a folder with room for so many blocks."""

    def __init__(self, rig: Any, path: Path, *blocks: int) -> None:
        """Measure one file, and write blocks that look as if they had been used in this order."""
        self.rig, self.path, self.made = rig, path, list[FolderConnector]()
        rig.fill(*range(1, 9))
        measure = self.connector(None)
        self.write(measure, 1)
        self.bytes_per_file = self.file(1).stat().st_size
        self.file(1).unlink()
        self.write(self.connector(None), *blocks)
        for age, block in enumerate(blocks):
            os.utime(self.file(block), ns=(age, age))

    def connector(self, room: int | None) -> FolderConnector:
        """Return a connector that lets the folder hold `room` files, and less than one more."""
        limit = None if room is None else (room + 1) * self.bytes_per_file - 1
        self.made.append(FolderConnector(self.rig.pool, self.path, model="tiny", max_bytes=limit))
        return self.made[-1]

    def write(self, connector: FolderConnector, *blocks: int) -> None:
        """Write blocks, one after the other."""
        for block in blocks:
            connector.written(self.rig.hashes(block), [block])
            connector.flush()

    def file(self, block: int) -> Path:
        """Return where the file of a block is."""
        return self.made[0].folder / f"{self.rig.hashes(block)[0].hex()}.safetensors"

    def blocks(self) -> set[int]:
        """Return which blocks have a file."""
        return {block for block in range(1, 9) if self.file(block).exists()}

    def start(self, connector: FolderConnector, *blocks: int) -> None:
        """Start a load of blocks into the last ones of the pool."""
        tokens = 4 * len(blocks)
        assert connector.match("a", self.rig.hashes(*blocks), tokens, 0) == (tokens, True)
        connector.allocated("a", list(range(9, 9 + len(blocks))), 0, tokens)


@pytest.fixture
def folder(rig: Any, tmp_path: Path) -> Iterator[Folder]:
    """Return a folder with blocks 1, 2 and 3, of which 1 was not used for longest."""
    made = Folder(rig, tmp_path, 1, 2, 3)
    yield made
    for connector in made.made:
        connector.close()


def test_the_least_recently_used_file_makes_room(folder: Folder) -> None:
    """A fourth file costs the oldest of three, and nobody is offered what is gone."""
    connector = folder.connector(room=3)
    folder.write(connector, 4)

    assert folder.blocks() == {2, 3, 4}
    assert connector.statistics().files_removed == 1
    assert connector.match("a", folder.rig.hashes(1), 4, 0) == (0, False)
    folder.write(connector, 5, 6, 7)
    assert folder.blocks() == {5, 6, 7}
    assert connector.statistics().files_removed == 4


def test_without_a_limit_nothing_goes(folder: Folder) -> None:
    """A folder keeps everything if nothing else is asked for."""
    folder.write(folder.connector(None), 4, 5, 6, 7, 8)

    assert folder.blocks() == {1, 2, 3, 4, 5, 6, 7, 8}


def test_a_loaded_chain_loses_its_tail_first(folder: Folder) -> None:
    """What was loaded counts as used, in another process, too; the head is of use by itself."""
    reader, writer = folder.connector(None), folder.connector(room=3)
    folder.start(reader, 1, 2)
    folder.rig.ends(reader)

    folder.write(writer, 4)
    assert folder.blocks() == {1, 2, 4}
    folder.write(writer, 5)
    assert folder.blocks() == {1, 4, 5}


def test_what_is_being_read_stays(folder: Folder) -> None:
    """Of a load that has started no file is removed, though they are the oldest, until its end."""
    connector, goes_on = folder.connector(room=3), threading.Event()
    read = connector._folder.read

    def wait_and_read(block_hash: bytes, like: Tensor) -> Tensor:
        assert goes_on.wait(timeout=60)
        return read(block_hash, like)

    connector._folder.read = wait_and_read  # type: ignore[method-assign]
    folder.start(connector, 1, 2)
    folder.write(connector, 4, 5)
    assert folder.blocks() == {1, 2, 5}
    goes_on.set()
    assert folder.rig.ends(connector).received == {"a"}
    assert not folder.rig.is_clear(9, 10)

    for age, block in enumerate((1, 2)):
        os.utime(folder.file(block), ns=(age, age))
    folder.write(connector, 6, 7)
    assert folder.blocks() == {5, 6, 7}


def test_a_file_larger_than_the_limit_stays_alone(folder: Folder) -> None:
    """The block that was written last is there, whatever else had to go for it."""
    folder.write(folder.connector(room=0), 4)

    assert folder.blocks() == {4}


def test_what_others_write_is_seen(folder: Folder) -> None:
    """A process that has written an eighth of its limit looks at what others have done."""
    one, other = folder.connector(room=6), folder.connector(None)
    folder.write(one, 4)
    folder.write(other, 5, 6, 7)
    folder.write(one, 8)

    assert len(folder.blocks()) == 6
    assert 1 not in folder.blocks()


def test_only_block_files_are_removed(folder: Folder) -> None:
    """What others have put there counts and stays; a refused file goes when its turn comes."""
    connector = folder.connector(room=3)
    stranger = folder.file(1).with_name("notes.txt")
    stranger.write_bytes(b"x" * folder.bytes_per_file)
    refused = folder.file(1).with_name(folder.file(1).name + ".refused")
    folder.file(1).rename(refused)
    os.utime(stranger, ns=(0, 0))
    folder.write(connector, 4)

    assert stranger.exists()
    assert not refused.exists()
    assert folder.blocks() == {3, 4}


def test_a_file_that_cannot_be_removed_costs_another(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns the folder may forbid it; the next oldest goes, and nobody hears of it."""
    connector, unlink = folder.connector(room=3), Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == folder.file(1):
            raise PermissionError(path)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    folder.write(connector, 4)

    assert folder.blocks() == {1, 3, 4}
    assert connector.statistics().writes_dropped == 0
