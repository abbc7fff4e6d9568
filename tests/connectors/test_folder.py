"""Blocks in a folder: what comes back, what is refused, and what a bad disk cannot do."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kvproof.runtime.connector import Connector
from kvproof.runtime.connectors import block_folder
from kvproof.runtime.connectors.block_file import UnusableFileError, decoded, encoded
from kvproof.runtime.connectors.folder import FolderConnector
from kvproof.runtime.errors import CallerError

pytestmark = pytest.mark.usefixtures("no_new_threads")

New = Callable[..., FolderConnector]
MODEL = "tiny, version 1"


@pytest.fixture
def new(rig: Any, tmp_path: Path) -> Iterator[New]:
    """Return the function that makes a connector, which is closed at the end of the test."""
    made: list[FolderConnector] = []

    def make(pool: Any = None, **options: Any) -> FolderConnector:
        made.append(FolderConnector(pool or rig.pool, tmp_path, **{"model": MODEL, **options}))
        return made[-1]

    yield make
    for connector in made:
        connector.close()
    assert not list(tmp_path.rglob("*.partial"))


@pytest.fixture
def stored(rig: Any, new: New) -> tuple[FolderConnector, list[Tensor]]:
    """Return a connector that has written blocks 1, 2 and 3, and what they held."""
    connector, contents = new(), rig.fill(1, 2, 3)
    connector.written(rig.hashes(1, 2, 3), [1, 2, 3])
    connector.flush()
    rig.clear()
    return connector, contents


def file_of(connector: FolderConnector, block_hash: bytes) -> Path:
    """Return where the file of a block is."""
    return connector.folder / f"{block_hash.hex()}.safetensors"


def fields_of(connector: FolderConnector, block_hash: bytes) -> dict[str, str]:
    """Return the metadata that the file of a block has, but for the checksum."""
    return connector._folder._fields_of(block_hash)


# --- What comes back ------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bytes_come_back_in_another_process(
    new_rig: Any, new: New, dtype: torch.dtype, layout: str
) -> None:
    """A connector that is made later loads what an earlier one has written, bit for bit."""
    rig = new_rig(dtype, layout)
    contents = rig.fill(1, 2, 3)
    first = new(rig.pool)
    first.written(rig.hashes(1, 2, 3), [1, 2, 3])
    first.close()
    rig.clear()

    later: Connector = new(rig.pool)
    assert later.match("a", rig.hashes(1, 2, 3), 12, 0) == (12, True)
    later.allocated("a", [7, 5, 6], 0, 12)
    assert later.has_pending_transfers()
    report = rig.ends(later)

    assert report.received == {"a"}
    assert not report.failed_blocks
    assert rig.holds([7, 5, 6], contents)
    assert rig.is_clear(1, 2, 3, 4, 8, 9, 10, 11)


# Public report: vllm#52360.
def test_written_reads_before_it_returns(
    rig: Any, new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that is overwritten at once is in the folder as it was when it was written."""
    connector, contents = new(), rig.fill(1)
    gate = gated_writes(monkeypatch)

    connector.written(rig.hashes(1), [1])
    rig.clear()
    gate.set()
    connector.flush()
    connector.match("a", rig.hashes(1), 4, 0)
    connector.allocated("a", [7], 0, 4)
    rig.ends(connector)

    assert rig.holds([7], contents)


def test_match_counts_whole_blocks_of_an_unbroken_chain(
    rig: Any,
    stored: tuple[FolderConnector, list[Tensor]],
) -> None:
    """The answer starts at the computed tokens and ends before the first missing file."""
    connector, _ = stored

    assert connector.match("a", rig.hashes(1, 2, 3), 13, 0) == (12, True)
    assert connector.match("a", rig.hashes(1, 2, 3), 11, 4) == (4, True)
    assert connector.match("a", rig.hashes(1, 9, 3), 12, 0) == (4, True)
    assert connector.match("a", rig.hashes(9, 2, 3), 12, 0) == (0, False)
    assert connector.match("a", rig.hashes(1, 2, 3), 12, 2) == (0, False)


def test_a_load_of_no_blocks_ends_once(
    rig: Any, stored: tuple[FolderConnector, list[Tensor]]
) -> None:
    """An offer of which no token is taken has its end all the same, and fills nothing."""
    connector, _ = stored
    connector.match("a", rig.hashes(1), 4, 0)

    connector.allocated("a", [7], 4, 0)

    assert rig.ends(connector).received == {"a"}
    assert rig.is_clear(7)


@pytest.mark.parametrize(
    "other",
    [
        {"model": "tiny, version 2"},
        {"dtype": torch.float16},
        {"layout": "HND"},
        {"block_size": 8},
    ],
    ids=lambda other: next(iter(other)),
)
def test_files_of_others_are_not_looked_at(
    rig: Any,
    stored: tuple[FolderConnector, list[Tensor]],
    new_rig: Any,
    new: New,
    other: dict[str, Any],
) -> None:
    """Another model, dtype, layout or block size has a subfolder of its own, in the same folder."""
    model = other.pop("model", MODEL)
    connector = new(new_rig(**other).pool, model=model)

    assert connector.folder != stored[0].folder
    assert connector.folder.parent == stored[0].folder.parent
    assert connector.match("a", rig.hashes(1, 2, 3), 24, 0) == (0, False)


def test_a_block_is_written_once(
    rig: Any, stored: tuple[FolderConnector, list[Tensor]], new: New
) -> None:
    """What has its file already is neither copied nor written again, by whomever it was written."""
    other = new()
    rig.fill(1)

    for connector in (stored[0], other):
        connector.written(rig.hashes(1, 1), [1, 1])
        connector.flush()

    assert stored[0].statistics().blocks_written == 3
    assert other.statistics().blocks_written == 0
    other.written(rig.hashes(4, 4), [1, 1])
    other.flush()
    assert other.statistics().blocks_written == 1


def test_what_appears_later_is_found(rig: Any, new: New) -> None:
    """A file that another process writes after this connector was made is offered and loaded."""
    reader, writer, contents = new(), new(), rig.fill(1)
    assert reader.match("a", rig.hashes(1), 4, 0) == (0, False)
    writer.written(rig.hashes(1), [1])
    writer.flush()

    assert reader.match("a", rig.hashes(1), 4, 0) == (4, True)
    reader.allocated("a", [7], 0, 4)
    rig.ends(reader)

    assert rig.holds([7], contents)


# --- What is refused ------------------------------------------------------------------------------

Damage = Callable[[FolderConnector, bytes, Tensor], None]


def with_field(name: str, value: str) -> Damage:
    """Return the damage of a whole file whose metadata says something else."""

    def damage(connector: FolderConnector, block_hash: bytes, content: Tensor) -> None:
        fields = {**fields_of(connector, block_hash), name: value}
        file_of(connector, block_hash).write_bytes(encoded(content, fields))

    return damage


def with_bytes(change: Callable[[bytes], bytes]) -> Damage:
    """Return the damage of a file whose bytes have changed."""

    def damage(connector: FolderConnector, block_hash: bytes, _: Tensor) -> None:
        path = file_of(connector, block_hash)
        path.write_bytes(change(path.read_bytes()))

    return damage


def with_tensor(change: Callable[[Tensor], Tensor]) -> Damage:
    """Return the damage of a whole file that holds another tensor."""

    def damage(connector: FolderConnector, block_hash: bytes, content: Tensor) -> None:
        data = encoded(change(content), fields_of(connector, block_hash))
        file_of(connector, block_hash).write_bytes(data)

    return damage


def instead(make: Callable[[Path], object]) -> Damage:
    """Return the damage of a name that stands for something else."""

    def damage(connector: FolderConnector, block_hash: bytes, _: Tensor) -> None:
        path = file_of(connector, block_hash)
        path.unlink()
        make(path)

    return damage


def flipped(data: bytes) -> bytes:
    """Return the bytes with one bit of the last one turned over."""
    return data[:-1] + bytes([data[-1] ^ 1])


def copy_of_another(connector: FolderConnector, block_hash: bytes, _: Tensor) -> None:
    """Put a good file under the name of another block."""
    other = file_of(connector, bytes([1]) * 32)
    file_of(connector, block_hash).write_bytes(other.read_bytes())


DEEP = b"[" * 60_000
TORN: dict[str, Damage] = {
    "last byte missing": with_bytes(lambda data: data[:-1]),
    "half": with_bytes(lambda data: data[: len(data) // 2]),
    "header cut off": with_bytes(lambda data: data[:20]),
    "three bytes": with_bytes(lambda data: data[:3]),
    "empty": with_bytes(lambda _: b""),
    "a bit flipped": with_bytes(flipped),
    "bytes behind": with_bytes(lambda data: data + b"\0"),
    "endless": with_bytes(lambda data: data + bytes(1 << 17)),
    "zeros": with_bytes(lambda data: bytes(len(data))),
    "text": with_bytes(lambda _: b"this is no tensor, and longer than eight bytes"),
    "deep header": with_bytes(lambda _: len(DEEP).to_bytes(8, "little") + DEEP),
    "header of a list": with_bytes(lambda _: (2).to_bytes(8, "little") + b"[]"),
    "other dtype": with_tensor(lambda tensor: tensor.view(torch.int32)),
    "other shape": with_tensor(lambda tensor: tensor.flatten()),
    "larger shape": with_tensor(lambda tensor: torch.cat([tensor, tensor])),
    "other fingerprint": with_field("fingerprint", "0" * 32),
    "other block size": with_field("block_size", "8"),
    "other model": with_field("model", "tiny, version 2"),
    "other layout": with_field("layout", "HND"),
    "other format": with_field("format", "kvproof block, version 0"),
    "unknown field": with_field("colour", "blue"),
    "of another block": copy_of_another,
}
UNREADABLE: dict[str, Damage] = {
    "a directory": instead(Path.mkdir),
    "a pipe": instead(os.mkfifo),
    "a link to itself": instead(lambda path: path.symlink_to(path)),
}


def load_damaged(rig: Any, connector: FolderConnector, damage: Callable[[], object]) -> None:
    """Load blocks 1, 2 and 3, of which the second is damaged after it was promised."""
    assert connector.match("a", rig.hashes(1, 2, 3), 12, 0) == (12, True)
    damage()

    connector.allocated("a", [7, 8, 9], 0, 12)
    report = rig.ends(connector)

    assert report.received == {"a"}
    assert report.failed_blocks == {8, 9}
    assert rig.is_clear(8, 9)
    statistics = connector.statistics()
    assert (statistics.blocks_loaded, statistics.files_unusable) == (1, 1)


@pytest.mark.parametrize("kind", TORN)
def test_a_file_that_is_not_as_it_was_is_a_failed_block(
    rig: Any,
    stored: tuple[FolderConnector, list[Tensor]],
    kind: str,
) -> None:
    """The pool's block stays as it is, the file is set aside, and a new one takes its place."""
    connector, contents = stored
    (second,), content = rig.hashes(2), contents[1].cpu().contiguous()

    load_damaged(rig, connector, lambda: TORN[kind](connector, second, content))

    assert rig.holds([7], contents[:1])
    path = file_of(connector, second)
    assert not path.exists()
    assert path.with_name(path.name + ".refused").exists()
    assert connector.match("b", rig.hashes(1, 2, 3), 12, 0) == (4, True)
    rig.fill(2)
    connector.written([second], [2])
    connector.flush()
    assert connector.match("b", rig.hashes(1, 2, 3), 12, 0) == (12, True)
    connector.allocated("b", [7, 8, 9], 0, 12)
    assert not rig.ends(connector).failed_blocks
    assert rig.holds([7, 8, 9], contents)


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_is_no_file_is_a_failed_block(
    rig: Any,
    stored: tuple[FolderConnector, list[Tensor]],
    kind: str,
) -> None:
    """Whatever else has the name is neither waited for nor moved, and not offered again."""
    connector, contents = stored
    (second,) = rig.hashes(2)

    load_damaged(rig, connector, lambda: UNREADABLE[kind](connector, second, rig))

    assert rig.holds([7], contents[:1])
    assert os.path.lexists(file_of(connector, second))
    assert connector.match("b", rig.hashes(1, 2, 3), 12, 0) == (4, True)


def test_a_file_without_permission_is_a_failed_block(
    rig: Any,
    stored: tuple[FolderConnector, list[Tensor]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A file that may not be read stays where it is, and is not offered again."""
    connector, _ = stored
    (second,), opened = rig.hashes(2), Path.open

    def refuse(path: Path, *given: Any) -> Any:
        if path == file_of(connector, second):
            raise PermissionError(errno.EACCES, "permission denied", str(path))
        return opened(path, *given)

    load_damaged(rig, connector, lambda: monkeypatch.setattr(Path, "open", refuse))

    assert file_of(connector, second).exists()
    assert connector.match("b", rig.hashes(1, 2, 3), 12, 0) == (4, True)
    assert "permission denied" in caplog.text


def test_a_missing_file_is_offered_again_when_it_is_back(
    rig: Any, stored: tuple[FolderConnector, list[Tensor]]
) -> None:
    """A file that somebody has removed is a failed block, and a new one is as good as any."""
    connector, contents = stored
    path = file_of(connector, rig.hashes(2)[0])
    data = path.read_bytes()

    load_damaged(rig, connector, path.unlink)

    assert connector.match("b", rig.hashes(1, 2, 3), 12, 0) == (4, True)
    path.write_bytes(data)
    assert connector.match("b", rig.hashes(1, 2, 3), 12, 0) == (12, True)
    connector.allocated("b", [7, 8, 9], 0, 12)
    assert not rig.ends(connector).failed_blocks
    assert rig.holds([7, 8, 9], contents)


def test_no_byte_of_a_file_can_change_a_block(
    rig: Any, stored: tuple[FolderConnector, list[Tensor]]
) -> None:
    """A file with any one byte changed, or cut off anywhere, is refused or gives the same block."""
    connector, contents = stored
    (first,), content = rig.hashes(1), contents[0].cpu()
    fields, data = fields_of(connector, first), file_of(connector, first).read_bytes()

    cut = [data[:end] for end in range(len(data))]
    changed = [
        data[:place] + bytes([data[place] ^ (1 << place % 8)]) + data[place + 1 :]
        for place in range(len(data))
    ]

    usable = 0
    for damaged in cut + changed:
        try:
            block = decoded(damaged, content, fields)
        except UnusableFileError:
            continue
        assert torch.equal(block, content)
        usable += 1
    assert usable < len(data) // 10
    assert torch.equal(decoded(data, content, fields), content)


def test_a_torn_file_that_cannot_be_moved_is_not_offered_again(
    rig: Any, stored: tuple[FolderConnector, list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that may only be read, nobody asks for the same bad file for ever."""
    connector, _ = stored
    path = file_of(connector, rig.hashes(2)[0])

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "permission denied")

    monkeypatch.setattr(Path, "replace", refuse)
    load_damaged(rig, connector, lambda: path.write_bytes(b""))

    assert path.exists()
    assert connector.match("b", rig.hashes(1, 2, 3), 12, 0) == (4, True)


def test_a_large_file_is_not_read_to_its_end(
    rig: Any, stored: tuple[FolderConnector, list[Tensor]], caplog: pytest.LogCaptureFixture
) -> None:
    """What is far longer than a block cannot be one, and costs no memory."""
    connector, _ = stored
    path = file_of(connector, rig.hashes(2)[0])

    load_damaged(rig, connector, lambda: os.truncate(path, 1 << 32))

    assert "it has more than" in caplog.text


def test_only_the_first_bad_file_is_logged(
    rig: Any,
    stored: tuple[FolderConnector, list[Tensor]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A folder full of bad files is counted in full and does not fill the log."""
    connector, _ = stored
    for number in (1, 2, 3):
        connector.match("a", rig.hashes(number), 4, 0)
        file_of(connector, rig.hashes(number)[0]).write_bytes(b"")
        connector.allocated("a", [7], 0, 4)
        rig.ends(connector)

    assert connector.statistics().files_unusable == 3
    assert len(caplog.records) == 1
    assert "is not loaded" in caplog.text


def test_a_folder_that_has_gone_away_offers_nothing(
    rig: Any,
    stored: tuple[FolderConnector, list[Tensor]],
    new: New,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the disk no longer answers, match says that there is nothing, and does not raise."""

    def fail(*_: object, **__: object) -> object:
        raise OSError(errno.ESTALE, "stale file handle")

    connector = new()
    monkeypatch.setattr(os, "stat", fail)

    assert connector.match("a", rig.hashes(1, 2, 3), 12, 0) == (0, False)


# --- What a bad disk cannot do --------------------------------------------------------------------


def gated_writes(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let writes wait on their thread until the event that is returned is set."""
    gate, write = threading.Event(), block_folder._write_through

    def wait_and_write(path: Path, data: bytes) -> None:
        assert gate.wait(timeout=60)
        write(path, data)

    monkeypatch.setattr(block_folder, "_write_through", wait_and_write)
    return gate


def full_disk(*_: object) -> None:
    """Do as a disk without room does."""
    raise OSError(errno.ENOSPC, "no space left on device")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_costs_only_the_file(
    rig: Any,
    new: New,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
) -> None:
    """Writes that fail are counted, logged once and leave no file; with room again all is well."""
    connector, contents = new(), rig.fill(1, 2, 3)
    with monkeypatch.context() as broken:
        broken.setattr(os, call, full_disk)
        connector.written(rig.hashes(1, 2, 3), [1, 2, 3])
        connector.flush()

    assert connector.statistics().writes_dropped == 3
    assert connector.statistics().blocks_written == 0
    assert len(caplog.records) == 1
    assert "no space left on device" in caplog.text
    assert list(connector.folder.iterdir()) == []
    assert connector.match("a", rig.hashes(1, 2, 3), 12, 0) == (0, False)

    connector.written(rig.hashes(1, 2, 3), [1, 2, 3])
    connector.flush()
    connector.match("a", rig.hashes(1, 2, 3), 12, 0)
    connector.allocated("a", [7, 8, 9], 0, 12)
    rig.ends(connector)
    assert rig.holds([7, 8, 9], contents)


class Killed(BaseException):
    """Stands for a process that ends here."""


def test_a_writer_that_dies_leaves_no_half_file(
    rig: Any,
    stored: tuple[FolderConnector, list[Tensor]],
    new: New,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until the file has its name it is not offered, and one that is there stays as it was."""
    connector, contents = stored
    first, fresh = rig.hashes(1, 4)
    before = file_of(connector, first).read_bytes()

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(os, "replace", die)
        dying.setattr(Path, "unlink", lambda *_, **__: None)
        for block_hash in (first, fresh):
            with pytest.raises(Killed):
                connector._folder.write(block_hash, contents[1].cpu().contiguous())

    left = list(connector.folder.glob(".*.partial"))
    assert len(left) == 2
    assert file_of(connector, first).read_bytes() == before
    assert connector.match("a", [fresh], 4, 0) == (0, False)
    os.utime(left[0], (time.time() - 7_200,) * 2)
    new()
    assert list(connector.folder.glob(".*.partial")) == left[1:]
    left[1].unlink()


def test_many_writers_of_one_block_leave_one_whole_file(rig: Any, new: New) -> None:
    """Ten processes' worth of writers of one hash get in each other's way in no moment."""
    connectors, (content,) = [new() for _ in range(10)], rig.fill(1)
    (first,), block = rig.hashes(1), content.cpu().contiguous()
    ready = threading.Barrier(10)

    def write(connector: FolderConnector) -> None:
        ready.wait(timeout=60)
        for _ in range(20):
            connector._folder.write(first, block)
            assert torch.equal(connector._folder.read(first, block), block)

    with ThreadPoolExecutor(10) as threads:
        list(threads.map(write, connectors))

    assert list(connectors[0].folder.iterdir()) == [file_of(connectors[0], first)]
    connectors[0].match("a", [first], 4, 0)
    connectors[0].allocated("a", [7], 0, 4)
    rig.ends(connectors[0])
    assert rig.holds([7], [content])


def test_a_slow_disk_cannot_fill_the_host(
    rig: Any, new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More blocks than may be pending are dropped and counted, and nobody is kept awake."""
    connector = new(writes_pending_max=2)
    gate = gated_writes(monkeypatch)
    rig.fill(1, 2, 3, 4)

    connector.written(rig.hashes(1, 2, 3), [1, 2, 3])
    connector.written(rig.hashes(4), [4])

    assert connector.statistics().writes_dropped == 2
    assert not connector.has_pending_transfers()
    gate.set()
    connector.flush()
    assert connector.statistics().blocks_written == 2
    connector.written(rig.hashes(4), [4])
    connector.flush()
    assert connector.statistics().blocks_written == 3


def test_close_writes_what_is_queued_and_ends_all_threads(
    rig: Any, new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After close, however often, the files are there, and no thread and no partial file is."""
    before = set(threading.enumerate())
    connector = new()
    gate = gated_writes(monkeypatch)
    rig.fill(1, 2)
    connector.written(rig.hashes(1, 2), [1, 2])
    connector.match("a", rig.hashes(1), 4, 0)
    threading.Timer(0.05, gate.set).start()

    connector.close()
    connector.close()

    assert [t for t in threading.enumerate() if t not in before and "kvproof" in t.name] == []
    names = sorted(path.name for path in connector.folder.iterdir())
    assert names == [f"{block_hash.hex()}.safetensors" for block_hash in rig.hashes(1, 2)]
    connector.written(rig.hashes(3), [3])
    assert connector.statistics().writes_dropped == 1


def test_threads_do_not_die_with_the_interpreter(rig: Any, new: New) -> None:
    """No thread is a daemon: none can be cut off in the middle of a write or of a block."""
    connector = new()
    rig.fill(1)
    connector.written(rig.hashes(1), [1])
    connector.flush()
    connector.match("a", rig.hashes(1), 4, 0)
    connector.allocated("a", [7], 0, 4)

    own = [thread for thread in threading.enumerate() if thread.name.startswith("kvproof-folder")]

    assert len(own) == 2
    assert not any(thread.daemon for thread in own)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": ""}, "model: got an empty name"),
        ({"num_load_threads": 0}, "num_load_threads: got 0, expected at least 1"),
        ({"writes_pending_max": 0}, "writes_pending_max: got 0, expected at least 1"),
        ({"load_timeout_seconds": 0}, "load_timeout_seconds: got 0, expected more than 0"),
        ({"max_bytes": 10}, "max_bytes: got 10, expected at least"),
    ],
)
def test_options_without_sense_are_refused(new: New, options: dict[str, Any], message: str) -> None:
    """A connector without a model's name, a thread or room for a write is the caller's mistake."""
    with pytest.raises(CallerError, match=message):
        new(**options)


def test_a_folder_that_cannot_be_made_is_refused(rig: Any, tmp_path: Path) -> None:
    """What can never work is said at the start, and not at each block."""
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(OSError, match="file"):
        FolderConnector(rig.pool, tmp_path / "file", model=MODEL)
