"""A core state in one piece of memory, so that keeping it, or going back to it, is one copy.

A model checker goes back to earlier states thousands of times a second; a state of a few requests
and blocks has forty small arrays, and copying one costs as much as copying them all at once.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.core import State
from kvproof.core.tables import Tables

Sizes = tuple[tuple[int, ...], ...]
Kept = tuple[Sizes, bytes, tuple[Any, ...], tuple[Any, ...]]

_KINDS = ("request", "block", "fence", "item")
_ALIGNED = 8  # bytes


class StateImage:
    """One buffer that holds all columns of a state, a record for each request, block and so on.

    The columns become views of it. When a state makes room for more requests, it leaves its image;
    `is_current` tells, and a new one is made.

    Attributes:
        sizes: for each kind the number of records and the widths of their tables.
        layouts: what a record of each kind is.
        starts: where each kind begins in `memory`.

    """

    def __init__(self, state: State) -> None:
        """Move the columns of a state into one buffer."""
        self.sizes = _sizes(state)
        self.layouts: dict[str, np.dtype[Any]] = {}
        starts: dict[str, int] = {}
        size = 0
        for kind in _KINDS:
            columns = getattr(state, kind)
            layout = self.layouts[kind] = _layout(columns)
            starts[kind], size = size, size + layout.itemsize * columns.capacity
        self._buffer = np.zeros(size, dtype=np.uint8)
        self._memory = self._buffer.data
        self.starts = starts
        self._views = {
            kind: self._records(kind, starts[kind], getattr(state, kind).capacity)
            for kind in _KINDS
        }
        for kind in _KINDS:
            _fill(getattr(state, kind), self._views[kind])
        self.attach(state)
        step, pool = state.step, state.pool
        self._step_names, self._pool_names = type(step).__slots__, type(pool).__slots__
        self._step_of, self._pool_of = attrgetter(*self._step_names), attrgetter(*self._pool_names)

    @property
    def memory(self) -> memoryview:
        """The buffer."""
        return self._memory

    def is_current(self, state: State) -> bool:
        """Return whether the columns of the state are still those in the buffer."""
        return (
            state.request.status is self._witnesses[0]
            and state.request.block_table.rows is self._witnesses[1]
            and state.fence.until is self._witnesses[2]
            and state.fence.fence_table.rows is self._witnesses[3]
        )

    def keep(self, state: State) -> Kept:
        """Return all that there is to a state."""
        return (
            self.sizes,
            self._memory.tobytes(),
            self._pool_of(state.pool),
            self._step_of(state.step),
        )

    def put_back(self, state: State, kept: Kept) -> None:
        """Make a state what it was when it was kept."""
        sizes, memory, pool_values, step_values = kept
        if sizes != self.sizes:
            raise ValueError(f"kept with the sizes {sizes}; expected {self.sizes}.")
        if not self.is_current(state):
            self.attach(state)
        self._memory[:] = memory
        pool, step = state.pool, state.step
        for name, value in zip(self._pool_names, pool_values, strict=True):
            setattr(pool, name, value)
        for name, value in zip(self._step_names, step_values, strict=True):
            setattr(step, name, value)

    def attach(self, state: State) -> None:
        """Let the columns of a state be those in the buffer."""
        for kind in _KINDS:
            columns, views = getattr(state, kind), self._views[kind]
            for name, view in views.items():
                if name in _tables(columns):
                    getattr(columns, name).rows = view
                else:
                    setattr(columns, name, view)
            columns.capacity = len(next(iter(views.values())))
            if len(columns.scratch) < columns.capacity:
                columns.scratch = np.zeros(columns.capacity, dtype=np.int64)
            columns.cells = type(columns.cells)(columns)
        fence = state.fence
        self._witnesses = (
            state.request.status,
            state.request.block_table.rows,
            fence.until,
            fence.fence_table.rows,
        )

    def _records(self, kind: str, start: int, capacity: int) -> dict[str, NDArray[Any]]:
        layout = self.layouts[kind]
        piece = self._buffer[start : start + capacity * layout.itemsize]
        records = piece.view(layout)
        return {name: records[name] for name in layout.names or ()}


def _sizes(state: State) -> Sizes:
    """Return what decides how long the memory of a state is."""
    kinds = [getattr(state, kind) for kind in _KINDS]
    for columns in kinds:
        for name in _tables(columns):
            getattr(columns, name).reserve(0, state.total_blocks + 1)
    return tuple(
        (columns.capacity, *(getattr(columns, name).rows.shape[1] for name in _tables(columns)))
        for columns in kinds
    )


def _columns(columns: Any) -> list[str]:
    """Return the names of the columns that are part of the state."""
    names = [name for name in type(columns).__slots__ if name != "scratch"]
    return [name for name in names if isinstance(getattr(columns, name), np.ndarray)]


def _tables(columns: Any) -> list[str]:
    names = type(columns).__slots__
    return [name for name in names if isinstance(getattr(columns, name), Tables)]


def _layout(columns: Any) -> np.dtype[Any]:
    """Return the record of one instance: numbers, then flags, then lists."""
    names = sorted(_columns(columns), key=lambda name: -getattr(columns, name).itemsize)
    fields: list[tuple[Any, ...]] = [(name, getattr(columns, name).dtype) for name in names]
    end = sum(np.dtype(field[1]).itemsize for field in fields)
    fields += _padding(end, 4, "before_tables")
    end += -end % 4
    for name in _tables(columns):
        rows = getattr(columns, name).rows
        fields.append((name, rows.dtype, rows.shape[1]))
        end += rows.dtype.itemsize * rows.shape[1]
    return np.dtype(fields + _padding(end, _ALIGNED, "behind_all"))


def _padding(end: int, multiple: int, name: str) -> list[tuple[Any, ...]]:
    missing = -end % multiple
    return [(name, np.uint8, missing)] if missing else []


def _fill(columns: Any, views: dict[str, NDArray[Any]]) -> None:
    for name in _columns(columns):
        views[name][:] = getattr(columns, name)
    for name in _tables(columns):
        views[name][:] = getattr(columns, name).rows
    for name in list(views):
        if name in ("before_tables", "behind_all"):
            del views[name]
