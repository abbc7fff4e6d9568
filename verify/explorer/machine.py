"""The real runtime as a machine: where it stands, what can happen next, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product

import numpy as np
from attrs import frozen

from kvproof.core import Status
from kvproof.core.arrays import Integers
from kvproof.runtime import Request, RequestRefused, Scheduler
from kvproof.runtime.admission import check_request
from kvproof.runtime.connector import NOTHING_HAPPENED, TransferReport
from kvproof.runtime.step_output import StepOutput
from kvproof.runtime.step_results import StepResults
from kvproof.verify.explorer.canonical_key import CanonicalKey
from kvproof.verify.explorer.events import Abort, Arrive, Event, Schedule, Update
from kvproof.verify.explorer.scope import Scope, Workload
from kvproof.verify.explorer.scripted_connector import ScriptedConnector
from kvproof.verify.explorer.shapes import Shape

GO_ON, STOP = 7, 2  # tokens


@frozen(eq=False)
class Position:
    """Where a machine stands: what the scheduler keeps, and nothing else."""

    kept: tuple[object, ...]


class Machine:
    """A scheduler to which the requests of one workload come and come again.

    Attributes:
        scope: the bound.
        shapes: the kind of request of each name.
        scheduler: the real one.
        key: works out its canonical key.
        refused: names whose requests are refused at their arrival, whatever else is there.
        outcome: what the last call returned, if it was `schedule` or `update`.

    """

    def __init__(self, scope: Scope, workload: Workload) -> None:
        """Start a scheduler without requests."""
        self.scope = scope
        self.names = tuple(chr(ord("a") + place) for place in range(len(workload)))
        self.shapes = dict(zip(self.names, workload, strict=True))
        keeps = [name for name in self.names if self.shapes[name].sends]
        self.connector = ScriptedConnector(self._options, keeps)
        self.outcome: StepOutput | StepResults | None = None
        # Freezes are looked for by comparing states; what the watchdog says of one is not needed.
        self.scheduler = Scheduler(
            scope.config(), connector=self.connector, on_freeze=lambda reasons: None
        )
        self.books = self.scheduler._books
        self.key = CanonicalKey(self.scheduler, self.names)
        self.refused = frozenset(filter(self._is_refused, self.names))

    # --- Where it stands ------------------------------------------------------------------------

    def position(self) -> Position:
        """Return where it stands."""
        return Position(self.scheduler.snapshot())

    def go_back(self, position: Position) -> None:
        """Stand where it stood."""
        self.scheduler.restore(position.kept)

    def unfinished(self) -> list[str]:
        """Return the requests that are live."""
        return [name for name in self.books.table.row_of if self.scheduler.status(name) in _LIVE]

    def live(self) -> int:
        """Return who is unfinished, as bits."""
        return sum(self.bit(name) for name in self.unfinished())

    def gainers(self, event: Event) -> int:
        """Return who gained by the call that was made last, as bits."""
        if isinstance(event, Arrive | Abort):
            return self.bit(event.name)
        if not isinstance(self.outcome, StepResults):
            return 0
        return sum(self.bit(result.request_id) for result in self.outcome)

    def pending(self) -> tuple[int, int]:
        """Return who is being loaded and who is being sent, as bits in the order of the names."""
        loading = sending = 0
        cells, transfers = self.books.state.request.cells, self.books.transfers
        assert transfers is not None
        for name, row in self.books.table.row_of.items():
            if cells.loading[row]:
                loading |= self.bit(name)
        for name, obligation in transfers.obligations.items():
            if "load" in obligation.waits_for:
                loading |= self.bit(name)
            if "send" in obligation.waits_for:
                sending |= self.bit(name)
        return loading, sending

    def bit(self, name: str) -> int:
        """Return the bit of a name."""
        return 1 << self.names.index(name)

    # --- What can happen ------------------------------------------------------------------------

    def simple_events(self) -> Iterator[Event]:
        """Yield what can happen now, but for steps, whose answers are not known before."""
        scheduler, transfers = self.scheduler, self.books.transfers
        assert transfers is not None
        row_of, flying = self.books.table.row_of, scheduler._in_flight
        if len(flying) < self.scope.in_flight:
            for name in self.names:
                if self._may_arrive(name):
                    yield Arrive(name)
        if self.scope.aborts:
            yield from (Abort(name) for name in row_of if scheduler.status(name) in _LIVE)
        if flying:
            yield from self._updates()

    def throttles(self) -> tuple[bool, ...]:
        """Return how a step may be asked for now: without the flag, with it, or not at all.

        An engine asks for steps while there is work, and the flag where it makes a difference.
        """
        scheduler, transfers = self.scheduler, self.books.transfers
        if len(scheduler._in_flight) >= self.scope.in_flight or transfers is None:
            return ()
        if not (scheduler.has_unfinished_requests() or transfers.num_obligations):
            return ()
        return (False, True) if self._throttling_matters() else (False,)

    def _throttling_matters(self) -> bool:
        """Return whether a throttled step differs from another (`kvproof.core.rows.begin`)."""
        state = self.books.state
        if not self.scope.throttles or state.step.capacity_bound:
            return False
        cells = state.request.cells
        return any(
            cells.status[row] == Status.RUNNING
            and (cells.decoding[row] or cells.computed[row] >= cells.known[row])
            for row in self.books.table.row_of.values()
        )

    def _may_arrive(self, name: str) -> bool:
        """Return whether a request can come: it is not here, and no blocks of it are."""
        transfers = self.books.transfers
        assert transfers is not None
        is_here = name in self.books.table.row_of or transfers.is_busy(name)
        return not (is_here or name in self.refused or self._has_absent_twin_before(name))

    def _is_refused(self, name: str) -> bool:
        try:
            check_request(self.scheduler.config, self.request(name), ())
        except RequestRefused:
            return True
        return False

    def _has_absent_twin_before(self, name: str) -> bool:
        """Return whether an equal request that stands before is absent too; then it comes first."""
        for other in self.names[: self.names.index(name)]:
            if self.shapes[other] == self.shapes[name] and other not in self.books.table.row_of:
                return True
        return False

    def _updates(self) -> Iterator[Event]:
        scheduler, transfers = self.scheduler, self.books.transfers
        assert transfers is not None
        output = scheduler._in_flight[0]
        names = [name for name in output.sampled_req_ids if self.shapes[name].stops]
        choices: list[list[tuple[str, object]]] = [[("", None), ("stop", name)] for name in names]
        choices += self._ends_of_loads()
        for name, obligation in transfers.obligations.items():
            ends = {"load": "received", "send": "sent"}
            kinds = [kind for kind in ends if kind in obligation.waits_for]
            lost = [("lost", name)] if self.scope.loads_fail else []
            choices.append([("", None), *((ends[kind], name) for kind in kinds), *lost])
        if self.scope.loads_fail:
            for row, frame in transfers.unconfirmed.items():
                if frame == self.books.state.step.returned + 1:
                    choices.append(self._failures_at_once(row))
        for chosen in product(*choices):
            yield _update(chosen)

    def _ends_of_loads(self) -> Iterator[list[tuple[str, object]]]:
        """Yield, for each load that is going on, how it can end, or not yet."""
        cells, size = self.books.state.request.cells, self.scope.block_size
        transfers = self.books.transfers
        assert transfers is not None
        for name, row in self.books.table.row_of.items():
            if cells.status[row] != Status.WAITING_FOR_REMOTE_KVS or not cells.loading[row]:
                continue
            ends: list[tuple[str, object]] = [("", None), ("received", name)]
            if self.scope.loads_fail:
                first, end = cells.computed[row], cells.computed[row] + cells.remote[row]
                places = range(first // size, -(-end // size))
                ends += [("failed", (name, place)) for place in places]
                ends.append(("lost", name))
                if self.scope.failures_come_early and row not in transfers.failed:
                    ends += [("failed already", (name, place)) for place in places]
            yield ends

    def _failures_at_once(self, row: int) -> list[tuple[str, object]]:
        """Return how a synchronous load can have failed, or not."""
        output = self.scheduler._in_flight[0]
        name = self.books.table.requests[row].request_id
        computed = dict(zip(output.req_ids, output.computed.tolist(), strict=True)).get(name, 0)
        places = range(-(-computed // self.scope.block_size))
        return [("", None), *(("failed at once", (name, place)) for place in places)]

    def _options(self, name: str, known: int, computed: int) -> list[tuple[int | None, bool]]:
        """Return what the connector may answer about a request, the best first."""
        shape = self.shapes[name]
        if not shape.offers:
            return [(0, False)]
        row = self.books.table.row_of[name]
        again = self.scope.offers_again or row not in self.books.started_over
        offered = shape.offered(known, computed) if again else []
        options: list[tuple[int | None, bool]] = [(n, not shape.synchronous) for n in offered]
        options.append((0, False))
        if self.scope.asks_again:
            options.append((None, False))
        return options

    # --- What comes of it -----------------------------------------------------------------------

    def do(self, event: Event) -> bool:
        """Let something happen; return whether somebody gains: a token, or the end, or a start."""
        self.outcome = None
        if isinstance(event, Update):
            return self._update(event)
        if isinstance(event, Arrive):
            self.scheduler.add_request(self.request(event.name))
        elif isinstance(event, Abort):
            self.scheduler.abort(event.name)
        else:
            raise TypeError(f"saw {event!r}; decide steps with `schedule` or `follow`.")
        return True

    def schedule(self, throttled: bool, script: tuple[int, ...]) -> Schedule:
        """Decide a step with the answers of a script; return what was answered in the end."""
        self.connector.begin(script)
        self.outcome = self.scheduler.schedule(throttle_prefills=throttled)
        return self.last_step(throttled)

    def last_step(self, throttled: bool) -> Schedule:
        """Return the step that was decided, or was being decided, as an event."""
        return Schedule(throttled, tuple(self.connector.answers))

    def follow(self, event: Event) -> None:
        """Let something happen that has happened before, with the same answers."""
        if not isinstance(event, Schedule):
            self.do(event)
            return
        self.connector.repeat(event.answers)
        self.outcome = self.scheduler.schedule(throttle_prefills=event.throttled)

    def _update(self, event: Update) -> bool:
        output = self.scheduler._in_flight[0]
        tokens = _tokens(tuple(name in event.stops for name in output.sampled_req_ids))
        self.outcome = results = self.scheduler.update(output, tokens, self.report(event))
        return len(results) > 0

    def report(self, event: Update) -> TransferReport:
        """Return the report that comes with an update."""
        if not (event.received or event.failed or event.lost or event.sent):
            return NOTHING_HAPPENED
        failed = [self.scheduler.block_ids(name)[place] for name, place in event.failed]
        return _report(event.received, tuple(failed), event.lost, event.sent)

    def request(self, name: str) -> Request:
        """Return the request of a name that comes now."""
        arrival = 0
        if self.scope.policy == "priority":
            rows = list(self.books.table.row_of.values())
            arrival = 1 + int(self.books.table.arrival[rows].max()) if rows else 1
        token = ord("a" if self.scope.caches_prefixes else name)
        return _request(name, token, self.shapes[name], arrival)


@lru_cache(maxsize=4096)
def _request(name: str, token: int, shape: Shape, arrival: int) -> Request:
    return Request(
        name,
        [token] * shape.prompt,
        max_tokens=shape.max_tokens,
        stop_token_ids=[STOP],
        arrival_time=float(arrival),
        priority=shape.priority,
    )


@lru_cache(maxsize=1024)
def _tokens(stops: tuple[bool, ...]) -> Integers:
    return np.array([STOP if stop else GO_ON for stop in stops], dtype=np.int64)


@lru_cache(maxsize=65536)
def _report(
    received: tuple[str, ...],
    failed: tuple[int, ...],
    lost: tuple[str, ...],
    sent: tuple[str, ...],
) -> TransferReport:
    return TransferReport(received=received, failed_blocks=failed, lost=lost, sent=sent)


@lru_cache(maxsize=65536)
def _update(chosen: tuple[tuple[str, object], ...]) -> Update:
    """Return an update from what was chosen for each thing that can end."""
    found: dict[str, list[object]] = {"stop": [], "received": [], "failed": [], "lost": []}
    found["sent"] = []
    for kind, what in chosen:
        if kind == "failed":
            found["received"].append(what[0])  # type: ignore[index]
        if kind:
            found["failed" if kind.startswith("failed") else kind].append(what)
    return Update(
        stops=tuple(found["stop"]),  # type: ignore[arg-type]
        received=tuple(found["received"]),  # type: ignore[arg-type]
        failed=tuple(found["failed"]),  # type: ignore[arg-type]
        lost=tuple(found["lost"]),  # type: ignore[arg-type]
        sent=tuple(found["sent"]),  # type: ignore[arg-type]
    )


_LIVE = frozenset({Status.WAITING, Status.RUNNING, Status.PREEMPTED, Status.WAITING_FOR_REMOTE_KVS})
