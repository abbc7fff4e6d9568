"""How many bytes a folder of block files may hold: what was not used for longest goes first.

When a file was used last is its time of modification, so that all processes that share the folder
go by the same order. What others write is noticed when the folder is looked through again: each
process does so after an eighth of the limit, so that it is exceeded by an eighth for each of them.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from attrs import frozen

SHARE_UNSEEN = 8


@frozen(order=True)
class _File:
    used_ns: int
    name: str
    num_bytes: int


class FolderLimit:
    """The size of one folder; used from any thread.

    A file that is kept is not removed. Another process's reader is not disturbed by a removal: it
    has the file open, or finds that it is gone.
    """

    def __init__(self, folder: Path, bytes_max: int | None, removable: Sequence[str]) -> None:
        """Limit a folder to `bytes_max` bytes (None: not at all) of files with these suffixes."""
        self._folder, self._bytes_max = folder, bytes_max
        self._removable = tuple(removable)
        self._kept: Counter[str] = Counter()
        self._bytes = self._unseen = 0
        self._is_known = False
        self._lock = Lock()

    def keep(self, names: Iterable[str]) -> None:
        """Keep files, however long they have not been used, until they are let go as often."""
        with self._lock:
            self._kept.update(names)

    def let_go(self, names: Iterable[str]) -> None:
        """Let files be removed again that were kept."""
        with self._lock:
            self._kept.subtract(names)
            self._kept = +self._kept

    def used(self, names: Sequence[str]) -> None:
        """Take note that a chain of files was used, its head last: it is of use without a tail.

        Also where there is no limit: another process that shares the folder may have one.
        """
        now = time.time_ns()
        for place, name in enumerate(reversed(names)):
            with suppress(OSError):
                os.utime(self._folder / name, ns=(now + place, now + place))

    def added(self, name: str, num_bytes: int) -> list[str]:
        """Take note of a new file; return the names of those that had to go for it."""
        if self._bytes_max is None:
            return []
        with self._lock:
            self._bytes += num_bytes
            self._unseen += num_bytes
            due = self._unseen * SHARE_UNSEEN >= self._bytes_max or self._bytes > self._bytes_max
            if self._is_known and not due:
                return []
            return self._make_room({name, *self._kept})

    def _make_room(self, kept: set[str]) -> list[str]:
        assert self._bytes_max is not None
        files = sorted(self._files())
        self._bytes, self._unseen, self._is_known = sum(file.num_bytes for file in files), 0, True
        removed = []
        for file in files:
            if self._bytes <= self._bytes_max:
                break
            if file.name not in kept and file.name.endswith(self._removable):
                with suppress(OSError):
                    (self._folder / file.name).unlink(missing_ok=True)
                    self._bytes -= file.num_bytes
                    removed.append(file.name)
        return removed

    def _files(self) -> list[_File]:
        found = []
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError):  # Somebody else has just removed it.
                    status = entry.stat(follow_symlinks=False)
                    found.append(_File(status.st_mtime_ns, entry.name, status.st_size))
        return found
