"""The scheduler: requests in, steps out, samples back in; every change of state is a core row."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.core import Status, invariants, rows
from kvproof.core.arrays import Flags, Integers
from kvproof.runtime import accounting, drafting, miscounts, parking, transfer_ends
from kvproof.runtime.admission import check_request, token_ceiling, token_limit
from kvproof.runtime.books import Books
from kvproof.runtime.config import SchedulerConfig
from kvproof.runtime.connector import NOTHING_HAPPENED, Connector, TransferReport
from kvproof.runtime.errors import (
    BrokenInvariant,
    CallerError,
    Frozen,
    RequestRefused,
    StepOrderError,
)
from kvproof.runtime.explaining import explain, explain_all
from kvproof.runtime.explanation import Explanation
from kvproof.runtime.kv_pool import KVPool
from kvproof.runtime.look import Look
from kvproof.runtime.prefix_cache import PrefixStatistics
from kvproof.runtime.request import Request
from kvproof.runtime.request_table import arrival_number
from kvproof.runtime.running_pass import (
    Victim,
    first_of_least_urgent,
    last_running,
    least_urgent,
    leave_untold,
    schedule_running,
)
from kvproof.runtime.samples import Samples
from kvproof.runtime.statistics import Statistics
from kvproof.runtime.step_buffers import StepBuffers
from kvproof.runtime.step_output import StepOutput
from kvproof.runtime.step_plan import NOTHING, StepPlan, Stretch
from kvproof.runtime.step_results import StepResults
from kvproof.runtime.trial import copy_of
from kvproof.runtime.waiting_pass import schedule_waiting
from kvproof.runtime.waiting_request import Order
from kvproof.runtime.watchdog import OnFreeze, Watchdog, is_freeze


class Scheduler:
    """First come, first served, with chunked prefill and preemption by recomputation.

    The order of calls is `schedule`, run the model, `update`, and again; with several steps in
    flight `schedule` is some steps ahead. Requests may be added or aborted between any two calls.
    Rule: vLLM 0.25.1, `v1/core/sched/scheduler.py` and `async_scheduler.py`.

    A policy cannot break an invariant: it reads, and the core refuses a wrong choice. An exception
    that it raises reaches the caller of `schedule` or of the call that queues a request.

    Args:
        config: the limits.
        kv_pool: memory whose freed blocks are filled with NaN in debug mode.
        choose_victim: given a view of the running requests, returns the row of the one to preempt;
            by default the last one admitted, or under "priority" the least urgent.
        order: given a waiting request, returns a key that sorts; the least is admitted first, and
            of equals the one that waits longer. By default as `policy` says.
        connector: where KV can be loaded from and is sent to; see `kvproof.runtime.connector`.
        on_freeze: called once for each freeze, with an explanation of each request that is left:
            a step has changed nothing, though work is unfinished and nothing is under way that
            could help. Without it a freeze raises `Frozen` in debug mode, and is logged otherwise.
        debug: check every declared invariant after each call.

    Raises:
        CallerError: If the pool is not of the size that is configured, or not made for debugging.

    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        kv_pool: KVPool | None = None,
        choose_victim: Victim | None = None,
        order: Order | None = None,
        connector: Connector | None = None,
        on_freeze: OnFreeze | None = None,
        debug: bool = False,
    ) -> None:
        """Make a scheduler without requests."""
        _check_pool(config, kv_pool, debug)
        self.config, self.debug = config, debug
        usual = usual_victim(config)
        self._kv_pool, self._choose_victim = kv_pool, choose_victim or usual
        on_free = self._poison if debug and kv_pool is not None else None
        in_turn = choose_victim is None and usual is not first_of_least_urgent
        self._books = Books(config, on_free, order, connector, preempts_in_turn=in_turn)
        self._buffers = StepBuffers(config, self._books.state, self._books.table)
        self._in_flight: deque[StepOutput] = deque()
        self._steps = 0
        self._last_batch: tuple[Integers, NDArray[Any]] = (
            NOTHING.rows,
            self._books.table.requests[:0],
        )
        self._ended: list[int] = []
        self._finished_ids: set[str] = set()
        self._preemptions = 0
        self._plan = StepPlan()
        self._watchdog = Watchdog(on_freeze, raises=debug)

    def add_request(self, request: Request) -> None:
        """Put a request at the end of the waiting queue.

        Raises:
            RequestRefused: If it is malformed, could never fit into an empty pool, or its id is in
                use; nothing has changed then.

        """
        check_request(self.config, request, self._books.table.row_of)
        if self._books.transfers is not None and self._books.transfers.is_busy(request.request_id):
            message = f"request {request.request_id!r}: blocks of that id are still in transfer;"
            raise RequestRefused(f"{message} choose another, or wait.")
        row = self._books.table.next_row()
        limit, most = token_limit(self.config, request), token_ceiling(self.config, request)
        prompt = len(request.prompt_token_ids)
        if not request.needs_grammar:
            self._books.expect(request, prompt, limit)
        checked = not self.config.profile.accepts_what_never_fits
        arrive = rows.arrive if checked else rows.arrive_unchecked
        if not arrive(self._books.state, row, prompt, limit - prompt, most):
            raise BrokenInvariant(f"row {row} is vacant but takes no request.")
        if self.config.policy == "priority":
            time = arrival_number(request.arrival_time)
            if not rows.rank(self._books.state, row, request.priority, time):
                raise BrokenInvariant(f"row {row} waits but takes no place in the order.")
        self._books.table.insert(row, request, limit + self.config.num_speculative_tokens)
        if self._books.prefix is not None:
            self._books.prefix.arrive(row, prompt, request)
        if self._books.encoder is not None:
            self._books.encoder.arrive(row, request.mm_features)
        if request.needs_grammar:
            parking.await_grammar(self._books, row)
        else:
            self._books.waiting.add(row)
        self._check()

    def grammar_ready(self, request_id: str) -> bool:
        """Let a request that waited for its grammar wait for admission; False if none does."""
        ready = self.status(request_id) is Status.WAITING_FOR_GRAMMAR
        if ready:
            parking.grammar_ready(self._books, self._books.table.row_of[request_id])
            self._check()
        return ready

    def continue_session(
        self, request_id: str, token_ids: Sequence[int], max_tokens: int = 16
    ) -> None:
        """Send the next input of a parked session, which then waits for admission again.

        Raises:
            RequestRefused: If no such session is parked, or the input could never fit; nothing has
                changed then.

        """
        parking.continue_session(self._books, self.config, request_id, token_ids, max_tokens)
        self._check()

    def schedule(self, throttle_prefills: bool = False) -> StepOutput:
        """Decide the next step and dispatch it as a frame.

        Args:
            throttle_prefills: leave prefills to a later step, so that data-parallel ranks prefill
                together. Ignored while no running request decodes, and while this rank is bound by
                capacity: the last step that was not throttled left requests waiting
                (vLLM Scheduler.schedule, prefill_capacity_bound).

        Raises:
            StepOrderError: If `max_steps_in_flight` steps wait for `update`; nothing has changed.
            Frozen: In debug mode, if the step changes nothing and nothing else will; it is not in
                flight then.
            CallerError: If a policy chose a row that does not run, or a key that does not sort. The
                step is given up, as when a policy raises: nobody is scheduled, and the victims
                before that one stay preempted.

        """
        if len(self._in_flight) >= self.config.max_steps_in_flight:
            oldest = self._in_flight[0].step
            message = f"step {oldest} is in flight; give its samples to update() first."
            raise StepOrderError(message)
        plan = self._decide(throttle_prefills)
        output = self._dispatch(plan)
        if not plan.stretches or self._watchdog.is_frozen:
            self._watch(output)
        self._in_flight.append(output)
        self._preemptions += len(plan.preempted)
        self._check()
        return output

    def update(
        self,
        output: StepOutput,
        sampled: accounting.Sampled,
        transfers: TransferReport = NOTHING_HAPPENED,
    ) -> StepResults:
        """Account for the samples of the oldest step in flight, and for transfers that ended.

        Args:
            output: what `schedule` returned first of what has not been accounted for.
            sampled: one token for each request of `output.sampled_req_ids`: a mapping from id to
                token, or a sequence, array or tensor in their order, int64 [S].
            transfers: what the connector's `poll` returned when the step had run. Failures of a
                synchronous load are reported with the step that runs on it.

        Raises:
            StepOrderError: If another step is awaited, or tokens are missing or too many; nothing
                has changed then.

        """
        if not self._in_flight or output is not self._in_flight[0]:
            awaited = self._in_flight[0].step if self._in_flight else "none"
            message = f"saw the samples of step {output.step}, awaited: {awaited}; each step once."
            raise StepOrderError(message)
        tokens = accounting.sampled_tokens(output, sampled)
        self._buffers.leave(output)
        results = self._account(output, tokens, transfers)
        self._in_flight.popleft()
        if results.reasons:
            self._end(results.ended_rows())
            accounting.leave_running(self._books)
        self._retire()
        self._check()
        return results

    def abort(self, request_ids: str | Iterable[str]) -> list[str]:
        """End requests in whatever state they are; return the ids that were live.

        An id that is unknown, or whose request has ended, is passed over.
        """
        names = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        live = [name for name in dict.fromkeys(names) if self.status(name) in _LIVE]
        if live:
            self._buffers.fill_current()
        for name in live:
            row = self._books.table.row_of[name]
            accounting.abort(self._books, row)
            self._end([row])
        self._books.fences.drain()
        self._retire()
        self._check()
        return live

    def update_draft_tokens(self, drafts: Mapping[str, Sequence[int]]) -> None:
        """Give requests draft tokens, to be tried with their next token; call it after `update`.

        A request that is unknown, does not run or does not decode is passed over (vLLM
        Scheduler.update_draft_token_ids), and drafts past what it may sample are cut.

        Raises:
            StepOrderError: If a step is in flight; nothing has changed then.
            CallerError: If a request has more drafts than num_speculative_tokens, or some are no
                whole numbers; nothing has changed.

        """
        if self._in_flight:
            message = f"step {self._in_flight[0].step} is in flight; give drafts after update()."
            raise StepOrderError(message)
        given = drafting.checked(drafts, self.config.num_speculative_tokens)
        for name, tokens in given.items():
            row = self._books.table.row_of.get(name)
            if row is not None:
                drafting.propose(self._books, row, tokens)
        self._check()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes, as after a weight update; return whether it was done.

        It is not while some block is in use (vLLM BlockPool.reset_prefix_cache).
        """
        return self._books.prefix is None or self._books.prefix.reset()

    def take_events(self) -> list[dict[str, Any]]:
        """Return the KV events since the last call; the first call turns them on."""
        if self._books.prefix is None:
            return []
        self._books.prefix.events.wanted = True
        return self._books.prefix.events.take()

    def published_hashes(self) -> frozenset[bytes]:
        """Return the hashes of all prefixes that a request could share now."""
        if self._books.prefix is None:
            return _NO_HASHES
        return frozenset(prefix.digest for _, prefix in self._books.prefix.index)

    def running_request_ids(self) -> list[str]:
        """Return the running requests in the order in which a step visits them."""
        return self._books.table.request_ids(self._books.running.rows)

    def waiting_request_ids(self) -> list[str]:
        """Return the waiting requests, the next to be admitted first."""
        rows = np.array(list(self._books.waiting), dtype=np.int64)
        return self._books.table.request_ids(rows)

    def skipped_request_ids(self) -> list[str]:
        """Return requests that are being loaded, or that the connector could not answer for."""
        rows = np.array([*self._books.landed, *self._books.skipped], dtype=np.int64)
        return self._books.table.request_ids(rows)

    def num_computed_tokens(self, request_id: str) -> int:
        """Return how many tokens of a request need no computing once steps and load are over.

        Raises:
            KeyError: If the request is unknown or has left.

        """
        cells, row = self._books.state.request.cells, self._books.table.row_of[request_id]
        return cells.computed[row] + cells.remote[row]

    def status(self, request_id: str) -> Status | None:
        """Return the state of a request, or None if it is unknown or has left."""
        row = self._books.table.row_of.get(request_id)
        return None if row is None else Status(self._books.state.request.cells.status[row])

    def token_ids(self, request_id: str) -> list[int]:
        """Return the known tokens of a request: its prompt and every accepted sample.

        Raises:
            KeyError: If the request is unknown or has left.

        """
        row = self._books.table.row_of[request_id]
        return self._books.table.tokens.known(row, self._books.state.request.cells.known[row])

    def block_ids(self, request_id: str) -> list[int]:
        """Return the block table of a request.

        Raises:
            KeyError: If the request is unknown or has left.

        """
        return self._books.table.block_ids(self._books.table.row_of[request_id])

    def has_unfinished_requests(self) -> bool:
        """Return whether some request waits for admission, is loaded or runs; see `has_work`.

        Requests that are parked until their caller does something do not count.
        """
        pool, transfers = self._books.state.pool, self._books.transfers
        loading = 0 if transfers is None else transfers.num_loading()
        return pool.running + pool.waiting + loading > 0

    def has_work(self) -> bool:
        """Return whether the loop must stay awake: for requests, steps in flight or transfers.

        Blocks that wait for a transfer come back only if somebody goes on polling (vllm#43433).
        """
        transfers = self._books.transfers
        waits = transfers is not None and (
            transfers.num_obligations > 0 or transfers.connector.has_pending_transfers()
        )
        return self.has_unfinished_requests() or bool(self._in_flight) or waits

    def explain(self, request_id: str) -> Explanation:
        """Say why a request is where it is: what refuses it, who holds that, what would end it.

        The next step is tried on a copy of the books, so that the guards are those of the passes
        and nothing changes; the connector is taken at its last word. While as many steps are in
        flight as there may be, the guards are those of the last step. It takes about as long as
        copying the books: do not call it in each step. Wishes of vllm#56816 and vllm#53130.

        Raises:
            KeyError: If the request is unknown, or has left and nothing of it is in transfer.

        """
        return explain(self._look(), request_id)

    def explain_all(self) -> list[Explanation]:
        """Say so of every request that has not left, in the order of their arrival."""
        return explain_all(self._look())

    def statistics(self) -> Statistics:
        """Return counts of requests, blocks, preemptions and freezes, as they are now."""
        return Statistics.of(self._books, self._preemptions, self._watchdog)

    def prefix_statistics(self) -> PrefixStatistics:
        """Return tokens looked up in the prefix cache and found, since the start."""
        return PrefixStatistics() if self._books.prefix is None else self._books.prefix.statistics

    def free_block_ids(self) -> list[int]:
        """Return the free blocks in the order in which they will be taken."""
        return list(self._books.queue)

    def check(self) -> None:
        """Check every declared invariant, and that the free queue is what the core says it is.

        Raises:
            BrokenInvariant: Naming each invariant that does not hold.

        """
        broken = invariants.violations(self._books.state)
        queued = np.flatnonzero(self._books.state.block.queued).tolist()
        if sorted(self._books.queue) != queued:
            broken.append("the free queue and the core disagree about which blocks are free")
        if self._books.prefix is not None:
            broken += self._books.prefix.mismatches()
        if broken:
            raise BrokenInvariant("; ".join(broken) + ". This is a fault in kvproof.")

    def snapshot(self) -> tuple[Any, ...]:
        """Return all that decides what the scheduler will do, for `restore`.

        For whoever explores what can happen; it costs a few microseconds. Counts for statistics
        and KV events are not part of it, and neither is what the connector knows.

        Raises:
            CallerError: If there is an encoder cache.

        """
        if self._books.encoder is not None:
            raise CallerError("an encoder cache cannot be kept; configure none.")
        return (
            self._books.snapshot(),
            tuple(self._in_flight),
            self._ended.copy(),
            self._finished_ids.copy(),
            self._steps,
            self._buffers.current,
        )

    def restore(self, kept: tuple[Any, ...]) -> None:
        """Be what the scheduler was when it gave this `snapshot`."""
        books, in_flight, ended, finished, self._steps, current = kept
        self._books.restore(books)
        self._in_flight = deque(in_flight)
        self._ended, self._finished_ids = ended.copy(), finished.copy()
        self._buffers.forget(current)

    def _decide(self, throttle_prefills: bool) -> StepPlan:
        if self._books.miscounted:
            throttle_prefills = throttle_prefills and miscounts.may_defer(self._books)
        if not rows.begin(self._books.state, throttle_prefills):
            raise BrokenInvariant("no frame is in flight but a step cannot be opened.")
        plan = self._plan = StepPlan()
        try:
            schedule_running(self._books, plan, self._choose_victim)
        except BrokenInvariant:
            raise
        except Exception:  # whatever a policy raises
            self._give_up(plan)
            raise
        if not (plan.preempted or plan.awaits_frames):
            schedule_waiting(self._books, plan)
        self._books.deferred = plan.deferred
        return plan

    def _watch(self, output: StepOutput) -> None:
        """Look whether a step without anybody is one of a freeze; a debug run ends with it."""
        books = self._books
        frozen = is_freeze(books, self._plan)
        look = Look(books=books, plan=self._plan, seen=books, steps={}, is_frozen=frozen)
        try:
            self._watchdog.note(frozen, lambda: explain_all(look))
        except Frozen:
            self._finished_ids.update(output.finished_req_ids)
            raise

    def _look(self) -> Look:
        """Try the next step on a copy, or look at the last one if no other may be decided now."""
        books, note, steps = self._books, "", self._steps_of_frames()
        if len(self._in_flight) < self.config.max_steps_in_flight and not books.state.step.is_open:
            trial = copy(self)
            trial._books = copy_of(books)
            try:
                plan = trial._decide(throttle_prefills=False)
                seen = trial._books
                still = is_freeze(books, plan, decided_by=seen)
                return Look(books=books, plan=plan, seen=seen, steps=steps, is_frozen=still)
            except CallerError as error:
                note = f"The next step cannot be decided: {error}"
        last = self._steps
        return Look(books=books, plan=self._plan, seen=books, steps=steps, step=last, note=note)

    def _steps_of_frames(self) -> dict[int, int]:
        """Return which step each frame in flight is, the oldest first."""
        frames = (output.step for output in self._in_flight if output.num_requests)
        return dict(enumerate(frames, start=self._books.state.step.processed + 1))

    def _give_up(self, plan: StepPlan) -> None:
        """Close an open step with nobody in it, so that the next one can be opened."""
        state, members = self._books.state, plan.joined().rows.tolist()
        for row in members:
            leave_untold(self._books, plan, row)
        undone = all(rows.unschedule(state, row) for row in members)
        if self._books.encoder is not None:
            self._books.encoder.undo_all()
        if not (undone and rows.withdraw(state)):
            raise BrokenInvariant("an open step cannot be given up.")
        self._preemptions += len(plan.preempted)

    def _dispatch(self, plan: StepPlan) -> StepOutput:
        state, stretch = self._books.state, plan.joined()
        total = state.token_budget - state.step.budget_left
        if not (rows.dispatch(state) if len(stretch.rows) else rows.withdraw(state)):
            raise BrokenInvariant("an open step cannot be closed.")
        self._steps += 1
        if self._books.cut_rows:
            transfer_ends.note_prefills(self._books, stretch.rows)
        prefix = self._books.prefix
        if prefix is not None and not prefix.at_allocation:
            accounting.publish(self._books, stretch.rows, stretch.written())
        output = StepOutput(
            step=self._steps,
            stretch=stretch,
            total_num_scheduled_tokens=total,
            sampling_places=self._sampling(stretch).nonzero()[0],
            requests=self._requests_in(stretch.rows),
            new_rows=tuple(plan.new),
            tables=plan.tables,
            resumed_rows=tuple(plan.resumed),
            resumed_req_ids=self._ids(plan.resumed),
            preempted_req_ids=self._ids(plan.preempted),
            finished_req_ids=frozenset(self._finished_ids) if self._finished_ids else _NOBODY,
            buffers=self._buffers,
            scheduled_encoder_inputs=self._encoder_inputs(),
            free_encoder_mm_hashes=self._freed_entries(),
            tries_drafts=self.config.num_speculative_tokens > 0,
        )
        self._finished_ids.clear()
        self._buffers.current = output
        return output

    def _sampling(self, stretch: Stretch) -> Flags:
        """Return who samples in a step: whoever has all of its known tokens computed by then."""
        ends = stretch.computed + stretch.tokens
        sampling: Flags = ends >= stretch.known
        if self._books.miscounted:
            return miscounts.without_chunks(self._books, stretch.rows, ends, sampling)
        return sampling

    def _account(self, output: StepOutput, tokens: Samples, report: TransferReport) -> StepResults:
        """Account for a frame, or a step that is none, and for transfers."""
        books, misled = self._books, {}
        if output.num_requests:
            accounting.open_frame(books)
        if books.transfers is not None:
            misled = transfer_ends.note(books, output, report)
        results = accounting.accept_tokens(books, output, tokens, list(misled))
        accounting.release_items(books, output)
        if books.transfers is not None:
            results = transfer_ends.fail_or_restart(books, results, misled)
        if output.num_requests:
            accounting.close_frame(books)
        if books.transfers is not None:
            books.transfers.frame_came_back()
        books.fences.drain()
        if books.transfers is not None:
            transfer_ends.end(books, report)
            books.fences.drain()
        return results

    def _encoder_inputs(self) -> dict[str, list[int]]:
        if self._books.encoder is None:
            return {}
        requests = self._books.table.requests
        computing = self._books.encoder.dispatched()
        return {requests[row].request_id: places for row, places in computing.items()}

    def _freed_entries(self) -> list[str]:
        return [] if self._books.encoder is None else self._books.encoder.take_freed()

    def _requests_in(self, batch: Integers) -> NDArray[Any]:
        """Return the requests of a batch; the same array while the batch is the same array."""
        if batch is not self._last_batch[0]:
            self._last_batch = batch, self._books.table.requests[batch]
        return self._last_batch[1]

    def _ids(self, some: list[int]) -> frozenset[str]:
        if not some:
            return _NOBODY
        return frozenset(self._books.table.requests[row].request_id for row in some)

    def _end(self, some: list[int]) -> None:
        """Take note that requests have ended; the next step tells the workers."""
        self._ended.extend(some)
        for row in some:
            self._plan.leave(row)
        self._finished_ids.update(self._books.table.request_ids(np.array(some, dtype=np.int64)))

    def _retire(self) -> None:
        """Let ended requests that no frame in flight runs leave their rows."""
        staying = []
        for row in self._ended:
            self._books.miscounted.pop(row, None)
            if rows.retire(self._books.state, row):
                self._books.table.remove(row)
                if self._books.prefix is not None:
                    self._books.prefix.leave(row)
                if self._books.encoder is not None:
                    self._books.encoder.leave(row)
            else:
                staying.append(row)
        self._ended = staying

    def _poison(self, blocks: Integers) -> None:
        assert self._kv_pool is not None
        self._kv_pool.poison(blocks.tolist())

    def _check(self) -> None:
        if self.debug:
            self.check()


def usual_victim(config: SchedulerConfig) -> Victim:
    """Return who is preempted where the caller has no policy of its own."""
    if config.policy != "priority":
        return last_running
    return first_of_least_urgent if config.profile.preempts_first_of_equals else least_urgent


def _check_pool(config: SchedulerConfig, pool: KVPool | None, debug: bool) -> None:
    if pool is None:
        return
    if (pool.num_blocks, pool.block_size) != (config.num_blocks, config.block_size):
        message = (
            f"the pool has {pool.num_blocks} blocks of {pool.block_size}, expected"
            f" {config.num_blocks} of {config.block_size} as in the configuration."
        )
        raise CallerError(message)
    if debug and not pool.debug:
        raise CallerError("debug fills freed blocks with NaN; make the pool with debug=True too.")


_NOBODY: frozenset[str] = frozenset()
_NO_HASHES: frozenset[bytes] = frozenset()
_LIVE = (
    Status.WAITING,
    Status.RUNNING,
    Status.PREEMPTED,
    Status.WAITING_FOR_REMOTE_KVS,
    Status.WAITING_FOR_GRAMMAR,
    Status.WAITING_FOR_STREAMING,
)
