"""The encoder cache: which items of a request are computed when, shared by what they contain.

Deciding is apart from taking: `plan` changes nothing, so that a request that is refused in the end
has taken nothing (vllm#31857). Between steps a request uses an entry only while it is in the midst
of the item, so its next token asks for no other entry, and nobody who uses one ever waits for one:
whoever waits, somebody gets on. Rule: vLLM Scheduler._try_schedule_encoder_inputs and
EncoderCacheManager.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field, frozen

from kvproof.core import State, rows
from kvproof.runtime.demand import Demand, Quantity
from kvproof.runtime.errors import BrokenInvariant
from kvproof.runtime.request import EncoderItem


@frozen
class EncoderPlan:
    """What a chunk needs of the encoder: `tokens` may be fewer than asked, down to none.

    `computes` and `shares` are places in the request's list of items; `shortage` says what was
    missing for the item at which the chunk ends, if one was.
    """

    tokens: int
    computes: tuple[int, ...] = ()
    shares: tuple[int, ...] = ()
    shortage: Demand | None = None


@define
class RowItems:
    """The items of a request, and the cache entry of each that it uses, by place."""

    items: tuple[EncoderItem, ...]
    used: dict[int, int] = field(factory=dict)


class EncoderCache:
    """Entries by identifier; those that nobody uses are evicted, oldest first, for new ones."""

    def __init__(self, state: State, *, drops_repeats: bool = False) -> None:
        """Start with an empty cache; `drops_repeats` as in `Profile.drops_half_read_repeats`."""
        self._state, self._drops_repeats = state, drops_repeats
        self._entry_of: dict[str, int] = {}
        self._identifier_of: dict[int, str] = {}
        self._idle: dict[int, None] = {}
        self._vacant = list(range(state.item.capacity - 1, -1, -1))
        self._rows: dict[int, RowItems] = {}
        self._computing: dict[int, list[tuple[int, int]]] = {}
        self._freed: list[str] = []

    def arrive(self, row: int, items: Sequence[EncoderItem]) -> None:
        """Take note of the items of a new request."""
        if items:
            self._rows[row] = RowItems(tuple(items))

    def leave(self, row: int) -> None:
        """Forget a request that uses no entry any more."""
        self._rows.pop(row, None)

    def has_items(self, row: int) -> bool:
        """Return whether the request in a row has items."""
        return row in self._rows

    def plan(self, row: int, computed: int, tokens: int) -> EncoderPlan:
        """Return how many of the tokens can run, and which items they need."""
        computes: list[int] = []
        shares: list[int] = []
        used = self._rows[row].used
        ready = {self._identifier_of[entry] for entry in used.values()}
        pinned = wanted = 0
        shortage = None
        for place, item in enumerate(self._rows[row].items):
            if item.offset >= computed + tokens:
                break
            if item.end <= computed or place in used or item.identifier in ready:
                continue
            entry = self._entry_of.get(item.identifier)
            if entry is None:
                wanted += item.length
            elif entry in self._idle:
                pinned += self._state.item.cells.size[entry]
            demand = self._demand(wanted, pinned)
            if not demand.fits:
                shortage = demand
                tokens = max(item.offset - computed, 0)
                break
            (computes if entry is None else shares).append(place)
            ready.add(item.identifier)
        return EncoderPlan(tokens, tuple(computes), tuple(shares), shortage)

    def _demand(self, wanted: int, pinned: int) -> Demand:
        """Return what it takes to compute so many embeddings if so many idle ones are kept."""
        pool, step = self._state.pool, self._state.step
        slots = pool.encoder_free + pool.encoder_idle - pinned
        return Demand("encode", Quantity.EMBEDDINGS, wanted, min(slots, step.encoder_budget_left))

    def take(self, row: int, plan: EncoderPlan) -> None:
        """Do what was planned: shared entries first, so that none of them is evicted."""
        for place in plan.shares:
            self._share(row, place)
        for place in plan.computes:
            self._compute(row, place)

    def _share(self, row: int, place: int) -> None:
        entry = self._entry_of[self._rows[row].items[place].identifier]
        if not rows.reuse(self._state, row, entry):
            raise BrokenInvariant(f"row {row} may not use encoder entry {entry}.")
        self._idle.pop(entry, None)
        self._rows[row].used[place] = entry

    def _compute(self, row: int, place: int) -> None:
        item = self._rows[row].items[place]
        while self._state.pool.encoder_free < item.length:
            self._evict()
        entry = self._next_entry()
        if not rows.encode(self._state, row, entry, item.length):
            raise BrokenInvariant(f"row {row} may not compute encoder entry {entry}.")
        self._vacant.pop()
        self._entry_of[item.identifier] = entry
        self._identifier_of[entry] = item.identifier
        self._rows[row].used[place] = entry
        self._computing.setdefault(row, []).append((place, entry))

    def _next_entry(self) -> int:
        if not self._vacant:
            old = self._state.item.capacity
            self._state.item.reserve(2 * old)
            self._vacant = list(range(2 * old - 1, old - 1, -1))
        return self._vacant[-1]

    def _evict(self) -> None:
        entry = next(iter(self._idle))
        if not rows.evict(self._state, entry):
            raise BrokenInvariant(f"idle encoder entry {entry} may not be evicted.")
        self._drop(entry)
        self._freed.append(self._identifier_of.pop(entry))

    def _drop(self, entry: int) -> None:
        self._idle.pop(entry, None)
        del self._entry_of[self._identifier_of[entry]]
        self._vacant.append(entry)

    def undo(self, row: int) -> None:
        """Take back what the open step was to compute for a victim.

        An entry that another request of the step shares is computed for that one instead.
        """
        for place, entry in self._computing.pop(row, []):
            if self._state.item.cells.users[entry] > 1:
                self._hand_over(row, entry)
                continue
            if not rows.unencode(self._state, row, entry):
                raise BrokenInvariant(f"row {row} may not take back encoder entry {entry}.")
            del self._rows[row].used[place]
            self._drop(entry)
            del self._identifier_of[entry]

    def undo_all(self) -> None:
        """Take back what the open step was to compute or to share, whoever was to use it."""
        for row, pairs in list(self._computing.items()):
            for _, entry in pairs:
                self._leave_to(row, entry)
            self.undo(row)
        for row, record in self._rows.items():
            self._let_go_of_unread(row, record)

    def _let_go_of_unread(self, row: int, record: RowItems) -> None:
        """Give up the entries of items that a request has not begun."""
        computed = self._state.request.cells.computed[row]
        for place in [p for p in record.used if record.items[p].offset >= computed]:
            self._let_go(row, record.used.pop(place))

    def _leave_to(self, row: int, entry: int) -> None:
        """Let everybody but `row` go of an entry."""
        for other, record in self._rows.items():
            for place in [place for place, used in record.used.items() if used == entry]:
                if other != row:
                    self._let_go(other, record.used.pop(place))

    def _hand_over(self, row: int, entry: int) -> None:
        for other, record in self._rows.items():
            for place, used in record.used.items():
                if other != row and used == entry:
                    self._computing.setdefault(other, []).append((place, entry))
                    return
        raise BrokenInvariant(f"encoder entry {entry} has users that nobody knows.")

    def let_go(self, row: int) -> None:
        """Give up every entry of a request that is about to be preempted or to end."""
        record = self._rows.get(row)
        if record is None:
            return
        for entry in record.used.values():
            self._let_go(row, entry)
        record.used.clear()

    def _let_go(self, row: int, entry: int) -> None:
        if not rows.let_go(self._state, row, entry):
            raise BrokenInvariant(f"row {row} may not let go of encoder entry {entry}.")
        self._note_idle(entry)

    def release(self, row: int, computed: int) -> None:
        """Give up the entries of items that a processed frame has passed."""
        record = self._rows.get(row)
        if record is None:
            return
        for place in [p for p in record.used if record.items[p].end <= computed]:
            entry = record.used.pop(place)
            repeat = None if self._drops_repeats else _half_read(record, place, computed)
            if repeat is not None:
                record.used[repeat] = entry
                continue
            if not rows.release(self._state, row, entry, record.items[place].end):
                raise BrokenInvariant(f"row {row} may not release encoder entry {entry}.")
            self._note_idle(entry)

    def _note_idle(self, entry: int) -> None:
        if self._state.item.cells.users[entry] == 0:
            self._idle[entry] = None

    def dispatched(self) -> dict[int, list[int]]:
        """Return, by row, the places of the items that the dispatched step computes."""
        computing, self._computing = self._computing, {}
        return {row: [place for place, _ in pairs] for row, pairs in computing.items()}

    def take_freed(self) -> list[str]:
        """Return the identifiers of entries evicted since the last call."""
        freed, self._freed = self._freed, []
        return freed


def _half_read(record: RowItems, place: int, computed: int) -> int | None:
    """Return where a request is in the midst of the same item once more, or None (vllm#54284).

    A repeat that it has not begun does not count: who keeps an entry for later, and needs another
    one before that, would wait for itself.
    """
    identifier = record.items[place].identifier
    return next(
        (
            other
            for other, item in enumerate(record.items)
            if item.identifier == identifier and item.offset < computed < item.end
        ),
        None,
    )
