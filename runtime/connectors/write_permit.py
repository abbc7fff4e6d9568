"""Whether the thread of a load may still write into the pool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock


class LoadGivenUpError(Exception):
    """The load took too long, and its blocks may be somebody else's by now."""


class WritePermit:
    """Asked for by the thread of a load whenever it writes, withdrawn by whoever waits for it.

    Once it is withdrawn nothing is written any more, however late the thread comes back.
    """

    def __init__(self) -> None:
        """Permit to write."""
        self._writes = Lock()
        self._is_withdrawn = False

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write within the context; meanwhile the permit cannot be withdrawn.

        Raises:
            LoadGivenUpError: If it has been withdrawn.

        """
        with self._writes:
            if self._is_withdrawn:
                raise LoadGivenUpError
            yield

    def withdraw(self) -> bool:
        """Withdraw the permit without waiting; return False if somebody writes right now."""
        if not self._writes.acquire(blocking=False):
            return False
        self._is_withdrawn = True
        self._writes.release()
        return True
