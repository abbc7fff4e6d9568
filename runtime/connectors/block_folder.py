"""The folder of block files: which are there, how one gets in whole, and how a bad one gets out.

    <folder>/<fingerprint>/<hash>.safetensors           a block
    <folder>/<fingerprint>/<hash>.safetensors.refused   was not what it should be
    <folder>/<fingerprint>/.<random>.partial            is being written

Several processes may share the folder. A file appears under its name only when it is complete, so
that nobody reads half of one, and if two write the same block, either is right.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from torch import Tensor

from kvproof.runtime.connectors.block_file import (
    HEADER_BYTES_MAX,
    UnusableFileError,
    decoded,
    description,
    encoded,
    fingerprint,
)
from kvproof.runtime.connectors.folder_limit import FolderLimit
from kvproof.runtime.kv_pool import KVPool

SUFFIX, PARTIAL, REFUSED = ".safetensors", ".partial", ".refused"
PARTIAL_AGE_MAX_S = 3600.0


class BlockFolder:
    """The block files of one model and one geometry; used from any thread.

    Attributes:
        path: the subfolder, named by the fingerprint.

    """

    def __init__(
        self, folder: Path, pool: KVPool, model: str, bytes_max: int | None = None
    ) -> None:
        """Make the subfolder and remove what writers that died an hour ago have left in it.

        Its files take `bytes_max` bytes at most, if that is given. Raises OSError if the subfolder
        cannot be made.
        """
        fields = description(pool, model)
        self._fields = {**fields, "fingerprint": fingerprint(fields)}
        self.path = folder / self._fields["fingerprint"]
        self.path.mkdir(parents=True, exist_ok=True)
        self._bytes_max = pool.block_bytes + HEADER_BYTES_MAX
        # Names only. What was found once is taken to be there until reading it fails, and what
        # could not be used is not offered again, or a request would ask for it for ever.
        self._found: set[bytes] = set()
        self._refused: set[bytes] = set()
        self._limit = FolderLimit(self.path, bytes_max, (SUFFIX, REFUSED))
        self._remove_old_partial_files()

    def file(self, block_hash: bytes) -> Path:
        """Return where the file of a block is or would be."""
        return self.path / _name(block_hash)

    def offers(self, block_hash: bytes) -> bool:
        """Return whether there is a file for the block that has not proved unusable."""
        if block_hash in self._refused:
            return False
        if block_hash not in self._found:
            # Not Path.is_file, which raises where a share has gone away: that is no file either.
            if not os.path.isfile(self.file(block_hash)):
                return False
            self._found.add(block_hash)
        return True

    def read(self, block_hash: bytes, like: Tensor) -> Tensor:
        """Return the block, on the host, of the dtype and shape of `like`.

        Raises:
            UnusableFileError: If there is no such file or it is not what it should be; then it is
                not offered again until it is written again.
            OSError: If it cannot be read; likewise.

        """
        self._found.discard(block_hash)
        try:
            block = decoded(self._bytes(block_hash), like, self._fields_of(block_hash))
        except FileNotFoundError:
            raise  # somebody has removed it, and may put it there again
        except OSError:
            self._refused.add(block_hash)
            raise
        except UnusableFileError:
            self._set_aside(block_hash)
            raise
        self._found.add(block_hash)
        return block

    def keep(self, block_hashes: Sequence[bytes]) -> None:
        """Keep the files of blocks that are about to be read, until they are let go."""
        self._limit.keep(_name(block_hash) for block_hash in block_hashes)

    def let_go(self, block_hashes: Sequence[bytes]) -> None:
        """Let files be removed again that were kept."""
        self._limit.let_go(_name(block_hash) for block_hash in block_hashes)

    def used(self, block_hashes: Sequence[bytes]) -> None:
        """Take note that a chain of blocks has been of use."""
        self._limit.used([_name(block_hash) for block_hash in block_hashes])

    def write(self, block_hash: bytes, block: Tensor) -> int:
        """Write the file of a block, a contiguous tensor on the host, in one step for all others.

        Return how many files had to go for it. Raises OSError if that does not succeed; then
        nothing is left of it.
        """
        partial = self.path / f".{uuid4().hex}{PARTIAL}"
        data = encoded(block, self._fields_of(block_hash))
        try:
            _write_through(partial, data)
            os.replace(partial, self.file(block_hash))
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        self._refused.discard(block_hash)
        self._found.add(block_hash)
        removed = self._limit.added(_name(block_hash), len(data))
        self._found.difference_update(_hash(name) for name in removed if name.endswith(SUFFIX))
        return len(removed)

    def _fields_of(self, block_hash: bytes) -> dict[str, str]:
        return {**self._fields, "block_hash": block_hash.hex()}

    def _bytes(self, block_hash: bytes) -> bytes:
        path = self.file(block_hash)
        # Opening a pipe would wait for its writer, and so would the load.
        if path.exists() and not path.is_file():
            raise IsADirectoryError(f"{path} is no regular file")
        with path.open("rb") as file:
            data = file.read(self._bytes_max + 1)
        if len(data) > self._bytes_max:
            raise UnusableFileError(f"it has more than {self._bytes_max} bytes")
        return data

    def _set_aside(self, block_hash: bytes) -> None:
        self._refused.add(block_hash)
        path = self.file(block_hash)
        with suppress(OSError):
            path.replace(path.with_name(path.name + REFUSED))

    def _remove_old_partial_files(self) -> None:
        for path in self.path.glob(f".*{PARTIAL}"):
            # A younger one may be another process's, which is still writing.
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > PARTIAL_AGE_MAX_S:
                    path.unlink()


def _name(block_hash: bytes) -> str:
    return block_hash.hex() + SUFFIX


def _hash(name: str) -> bytes:
    return bytes.fromhex(name.removesuffix(SUFFIX))


def _write_through(path: Path, data: bytes) -> None:
    """Write a new file and wait for the disk, so that a later rename cannot overtake the bytes.

    The folder itself is not synchronised: a name that a crash takes back is a block not kept.
    """
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
