"""When two schedulers are the same for all that can follow: a few bytes that say so.

Left out is what decides nothing, or only by comparison:

- which row a request is in, for it is told by its name;
- block ids, which are numbered in the order in which tables and fences name them. Without prefix
  caching all free blocks are alike (not published, named by nobody), so that their order in the
  free queue is a renaming too, and only their number counts; with it the order is kept;
- numbers of frames, of which only the distance to the last processed one is compared;
- how often a request was preempted, but not whether it was; statistics; what workers are told.

Requests keep their names, so that one who starves can be told from those who are served.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvproof.runtime.scheduler import Scheduler
from kvproof.runtime.step_output import StepOutput

_FORMATS = {"int64": "q", "bool": "?", "int32": "i"}
_FREE = (0, 1, 0)  # references, queued, content
_ABSENT = (b"\xff", b"")
_READ = (
    *("status", "known", "limit", "ceiling", "drafts", "computed", "scheduled", "stale"),
    *("last_frame", "preemptions", "held", "remote", "decoding", "stopped", "loading", "landed"),
    "load_failed",
    "block_table",
)


class CanonicalKey:
    """Works out the key of one scheduler, which must be between two calls."""

    def __init__(self, scheduler: Scheduler, names: tuple[str, ...]) -> None:
        """Take the scheduler and every name that a request of it can have."""
        self._scheduler, self._names = scheduler, names
        self._books = scheduler._books
        image = self._books.image
        self._image, self._memory = image, image.memory
        self._row = _struct(image.layouts["request"])
        self._fence = _struct(image.layouts["fence"])
        self._block = _struct(image.layouts["block"])
        self._starts, self._entries = image.starts, 0
        places = _places(image.layouts["request"])
        self._order = [places[name] for name in _READ]
        self._fence_fields = _places(image.layouts["fence"])
        self._block_fields = _places(image.layouts["block"])
        self._digests: dict[bytes, int] = {}

    def __call__(self) -> tuple[bytes, bytes]:
        """Return a key of what the declared invariants speak of, and the key of everything."""
        if self._books.image is not self._image:
            self.__init__(self._scheduler, self._names)  # type: ignore[misc]
        naming: dict[int, int] = {}
        number: dict[int, int] = {}
        head, rows = self._head(), self._rows(naming, number)
        rest: list[int] = []
        self._add_fences(rest, naming)
        self._add_blocks(rest, naming)
        own, others = _bytes(rest), _bytes(self._orders(number))
        key = b"".join((head, *(row + blocks for row, blocks in rows), own, others))
        if len(naming) != self._entries:  # Tables share blocks, so that it counts which ones.
            return key, key
        return b"".join((head, *sorted(row for row, _ in rows), own)), key

    def _head(self) -> bytes:
        step, pool = self._books.state.step, self._books.state.pool
        base = step.processed
        values = (
            step.issued - base,
            step.returned - base,
            max(step.spoiled - base, 0),
            step.capacity_bound,
            step.is_open,
            step.credit,
            pool.free,
            pool.referenced,
            pool.running,
            pool.waiting,
            pool.undecided,
        )
        return _bytes(values)

    def _rows(self, naming: dict[int, int], number: dict[int, int]) -> list[tuple[bytes, bytes]]:
        """Return what is said of each request, and which blocks it holds.

        Blocks are named on the way, and the number of the request in each row is taken down.
        """
        books, found = self._books, list[tuple[bytes, bytes]]()
        base, start, size = books.state.step.processed, self._starts["request"], self._row.size
        row_of, unpack, memory = books.table.row_of, self._row.unpack_from, self._memory
        status, known, limit, ceiling, drafts, computed, scheduled, stale, *more = self._order
        last, preemptions, held, remote, decoding, stopped, loading, landed, failed, table = more
        self._entries = 0
        for place, name in enumerate(self._names):
            row = row_of.get(name)
            if row is None:
                found.append(_ABSENT)
                continue
            number[row] = place
            v = unpack(memory, start + row * size)
            length = v[held]
            values = (
                v[status],
                v[known],
                v[limit],
                v[ceiling],
                v[drafts],
                v[computed],
                v[scheduled],
                max(v[last] - base, 0),
                max(v[stale] - base, 0),
                v[preemptions] > 0,
                v[remote],
                v[decoding] + 2 * v[stopped] + 4 * v[loading] + 8 * v[landed] + 16 * v[failed],
                length,
            )
            blocks = [naming.setdefault(block, len(naming)) for block in v[table : table + length]]
            self._entries += length
            found.append((_bytes(values), _bytes(blocks)))
        return found

    def _add_fences(self, out: list[int], naming: dict[int, int]) -> None:
        f, start, size = self._fence_fields, self._starts["fence"], self._fence.size
        base = self._books.state.step.processed
        for fence in self._books.fences:
            v = self._fence.unpack_from(self._memory, start + fence * size)
            held, table = v[f["fenced"]], f["fence_table"]
            out += (254, max(v[f["until"]] - base, 0), v[f["pinned"]], held)
            self._entries += held
            for block in v[table : table + held]:
                out.append(naming.setdefault(block, len(naming)))

    def _add_blocks(self, out: list[int], naming: dict[int, int]) -> None:
        books, f = self._books, self._block_fields
        start, size = self._starts["block"], self._block.size
        references, queued, content = f["references"], f["queued"], f["content"]
        sharing = books.prefix is not None and books.prefix.is_shared
        cells, unpack = {}, self._block.unpack_from
        for block in range(1, books.state.total_blocks + 1):
            v = unpack(self._memory, start + block * size)
            cells[block] = v[references], v[queued], v[content]
        if sharing:
            self._entries += len(books.queue)
            for block in books.queue:
                naming.setdefault(block, len(naming))
            cells = {block: (r, q, c and self._content(c)) for block, (r, q, c) in cells.items()}
        out.append(253)
        for block in naming:
            out += cells.pop(block, _FREE)
        out.append(len(books.queue))
        for odd in sorted(cell for cell in cells.values() if cell != _FREE):
            out += odd
        if sharing and books.prefix is not None:
            out.extend(naming[block] for block in books.queue)
            for prefix, blocks in books.prefix.index.snapshot():
                if len(blocks) > 1:  # The first of them is the one that is shared.
                    out += (244, self._content(prefix.number), *map(naming.__getitem__, blocks))

    def _content(self, number: int) -> int:
        """Return a small number of what a block holds, the same whenever it holds the same."""
        prefix = self._books.prefix
        assert prefix is not None
        digests = {known.number: known.digest for _, known in prefix.index}
        return 1 + self._digests.setdefault(digests.get(number, b""), len(self._digests))

    def _orders(self, number: dict[int, int]) -> list[int]:
        """Return what the runtime keeps besides the core, as numbers from 0 to 255."""
        books, scheduler = self._books, self._scheduler
        base = books.state.step.processed
        out: list[int] = [max(books.dropped_until - base, 0)]
        for queue in (books.waiting, books.skipped, books.landed):
            out.append(252)
            out += [number[row] for row in queue]
        out.append(252)
        out += [number[row] for row in books.running.rows.tolist()]
        for some in (books.started_over, books.cut_rows):
            out.append(252)
            out += sorted(number[row] for row in some if row in number)
        for row, expected in sorted(books.miscounted.items()):
            if row in number:
                out += (243, number[row], expected)
        for row, blocks in books.untold.items():
            if row in number:
                out += (251, number[row], len(blocks))
        if books.transfers is not None:
            self._add_transfers(out, number, base)
        if books.prefix is not None and books.prefix.is_shared:
            own = books.prefix.snapshot()[0]
            out += [250, *(done for _, _, _, done in own)]
        for output in scheduler._in_flight:
            self._add_output(out, output, number)
        if scheduler.config.policy == "priority":
            out.append(249)
            live = sorted(number, key=lambda row: books.table.arrival[row])
            out += [number[row] for row in live]
        return out

    def _add_transfers(self, out: list[int], number: dict[int, int], base: int) -> None:
        transfers = self._books.transfers
        assert transfers is not None
        used = list(self._books.fences)
        for row, frame in sorted(transfers.unconfirmed.items()):
            out += (248, number[row], max(frame - base, 0))
        for row, valid in sorted(transfers.failed.items()):
            out += (247, number[row], valid)
        for name, obligation in sorted(transfers.obligations.items()):
            kinds = ("load" in obligation.waits_for) + 2 * ("send" in obligation.waits_for)
            out += (246, self._names.index(name), used.index(obligation.fence), kinds)

    def _add_output(self, out: list[int], output: StepOutput, number: dict[int, int]) -> None:
        out += (245, len(output.rows))
        sampling = set(output.sampling_places.tolist())
        stretch = output.stretch
        columns = (output.rows, output.tokens, output.computed, stretch.known)
        for place, values in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            row, tokens, computed, known = values
            # A row that has been left and taken again is told by its new request's frame numbers.
            out += (number.get(row, 255), tokens, computed, known, place in sampling)


def _bytes(values: Sequence[int]) -> bytes:
    """Return small numbers as bytes; only a scheduler gone wrong has others."""
    try:
        return bytes(values)
    except ValueError:
        return bytes(value & 255 for value in values)


def _struct(layout: np.dtype[Any]) -> struct.Struct:
    """Return how one record is read in one go."""
    parts = []
    for name in layout.names or ():
        field = layout.fields[name][0]  # type: ignore[index]
        kind, count = field.base.name, field.shape[0] if field.shape else 1
        parts.append(f"{count}x" if kind == "uint8" else f"{count}{_FORMATS[kind]}")
    return struct.Struct("=" + "".join(parts))


def _places(layout: np.dtype[Any]) -> dict[str, int]:
    """Return where the first value of each field stands among the values of a record."""
    places, place = {}, 0
    for name in layout.names or ():
        field = layout.fields[name][0]  # type: ignore[index]
        places[name] = place
        if field.base.name != "uint8":
            place += field.shape[0] if field.shape else 1
    return places
