"""Everything at once: transfers with drafts, items, grammars, sessions, prefixes, steps in flight.

No model says what has to be decided. What is asked of each call is that it raises nothing, that all
invariants hold after it, that who ends with an error had a load that failed, that each request can
be explained, that a worker who is told only what is new knows every table, and that no token is
computed from KV that is not the request's own; and in the end, that everybody ends and every block
is back.
"""

from __future__ import annotations

import zlib
from collections import Counter, deque
from random import Random

from attrs import define, evolve, field

from kvproof.core import Status
from kvproof.runtime import EncoderItem, Request, Scheduler, SchedulerConfig, StepOutput
from kvproof.runtime.errors import RequestRefused
from kvproof.runtime.profile import Profile
from kvproof.verify import failure_policy
from kvproof.verify.explanation_claims import check_explanations
from kvproof.verify.loaded_memory import LoadedMemory
from kvproof.verify.mixed_connector import MixedConnector
from kvproof.verify.worker_view import WorkerView

VOCABULARY, STOP = 40, 3
STEPS_MAX = 600  # after the last arrival


class MixedError(AssertionError):
    """What is wrong, where nothing was raised."""


def random_config(draw: Random) -> SchedulerConfig:
    """Return limits of a small pool, with any features."""
    encoder = draw.choice((0, 0, 3, 7))
    return SchedulerConfig(
        num_blocks=draw.randint(6, 16),
        block_size=draw.randint(1, 3),
        max_num_seqs=draw.randint(1, 4),
        max_num_batched_tokens=draw.randint(4, 20),
        max_model_len=draw.choice((24, 48)),
        max_steps_in_flight=draw.randint(1, 3),
        long_prefill_token_threshold=draw.choice((0, 0, 0, 3)),
        policy=draw.choice(("fcfs", "priority")),
        enable_prefix_caching=draw.random() < 0.6,
        watermark=draw.choice((0.0, 0.0, 0.2)),
        scheduler_reserve_full_isl=draw.random() < 0.8,
        num_speculative_tokens=draw.choice((0, 0, 1, 3)),
        num_lookahead_tokens=draw.choice((0, 0, 2)),
        encoder_cache_size=encoder,
        max_num_encoder_input_tokens=encoder,
        kv_load_failure_policy=draw.choice(("recompute", "fail")),
    )


@define
class MixedRun:
    """A scheduler in debug mode, its connector and memory, and what happens to them.

    Attributes:
        draw: where chance comes from.
        config: the limits.
        counts: how often what happened.
        calls: how many calls were made.

    """

    draw: Random
    config: SchedulerConfig
    counts: Counter[str] = field(factory=Counter)
    calls: int = 0
    memory: LoadedMemory = field(init=False)
    connector: MixedConnector = field(init=False)
    scheduler: Scheduler = field(init=False)
    worker: WorkerView = field(factory=WorkerView)
    flying: deque[StepOutput] = field(factory=deque)
    given: dict[str, list[int]] = field(factory=dict)

    @classmethod
    def of(cls, seed: int, profile: Profile = Profile.safe()) -> MixedRun:  # noqa: B008 - frozen
        """Return a run with limits of its own."""
        draw = Random(seed)
        return cls(draw, evolve(random_config(draw), profile=profile))

    def __attrs_post_init__(self) -> None:
        size = self.config.block_size
        self.memory = LoadedMemory.of(size, self._tokens)
        self.connector = MixedConnector(self.draw, self.memory, size, self.counts)
        self.scheduler = Scheduler(self.config, connector=self.connector, debug=True)

    def run(self, calls: int) -> None:
        """Make random calls, then bring everything to its end.

        Raises:
            MixedError: If a request has no end, a block is not back, or a token is of foreign KV.

        """
        for _ in range(calls):
            self.calls += 1
            self._call()
        self._drain()

    # --- Calls ----------------------------------------------------------------------------------

    def _call(self) -> None:
        calls = [self._arrive] * 2 + [self._schedule] * 5 + [self._update] * 5
        calls += [self._draft, self._grammar_ready, self._continue]
        if self.draw.random() < 0.1:
            calls = [self._abort, self._reset, self._explain]
        self.draw.choice(calls)()

    def _arrive(self) -> None:
        name = f"r{len(self.given)}"
        capacity = self.config.num_usable_blocks * self.config.block_size
        prompt = self.draw.randint(1, max(capacity // 2, 1))
        stem = self.draw.choice(("", "", name))
        tokens = [_token(stem, place) for place in range(prompt)]
        kind = self.draw.choice(("", "", "", "grammar", "session"))
        request = Request(
            name,
            tokens,
            self.draw.randint(1, 8),
            [STOP] if self.draw.random() < 0.5 else [],
            priority=self.draw.randint(0, 2),
            arrival_time=float(len(self.given)),
            needs_grammar=kind == "grammar",
            resumable=kind == "session",
            mm_features=self._items(prompt),
        )
        try:
            self.scheduler.add_request(request)
        except RequestRefused:
            return
        self.given[name] = tokens
        self.counts[kind or "plain"] += 1

    def _items(self, prompt: int) -> list[EncoderItem]:
        length = self.draw.randint(1, 3)
        if self.config.encoder_cache_size < length or prompt < length or self.draw.random() < 0.5:
            return []
        offset = self.draw.randint(0, prompt - length)
        self.counts["items"] += 1
        return [EncoderItem(f"i{length}{self.draw.randint(0, 1)}", offset, length)]

    def _schedule(self) -> None:
        if len(self.flying) == self.config.max_steps_in_flight:
            return
        self.connector.begin_step()
        output = self.scheduler.schedule(throttle_prefills=self.draw.random() < 0.3)
        self.worker.see(output, self.scheduler)
        self.memory.run(output, self.worker.tables)
        self.flying.append(output)
        self.counts["preempted"] += len(output.preempted_req_ids)
        self.counts["drafts"] += len(output.scheduled_spec_decode_tokens)

    def _update(self) -> None:
        if not self.flying:
            return
        output, scheduler = self.flying.popleft(), self.scheduler
        report = self.connector.report()
        samples = {name: self._samples(name, output) for name in output.sampled_req_ids}
        to_fail = failure_policy.to_fail(scheduler, report)
        results = scheduler.update(output, samples, report)
        failed = failure_policy.failed(results)
        if failed != to_fail:
            raise MixedError(f"{sorted(failed)} ended with an error, expected {sorted(to_fail)}")
        for name in self.memory.misread(results):
            raise MixedError(f"{name} got a token of foreign KV in step {output.step}")
        self.counts["failed"] += len(failed)

    def _draft(self) -> None:
        if self.flying or not self.config.num_speculative_tokens:
            return
        names = self.scheduler.running_request_ids()
        counts = [self.draw.randint(0, self.config.num_speculative_tokens) for _ in names]
        self.scheduler.update_draft_tokens(
            {name: [0] * count for name, count in zip(names, counts, strict=True)}
        )

    def _grammar_ready(self) -> None:
        self.counts["grammars ready"] += sum(map(self.scheduler.grammar_ready, self._live()))

    def _continue(self) -> None:
        for name in self._live():
            known = self.scheduler.token_ids(name)
            turn = [*known, *(_token(name, len(known) + place) for place in range(2))]
            try:
                self.scheduler.continue_session(name, turn[len(known) :], self.draw.randint(1, 4))
            except RequestRefused:
                continue
            self.given[name] = turn
            self.counts["turns"] += 1

    def _abort(self) -> None:
        if live := self._live():
            self.counts["aborted"] += len(self.scheduler.abort(self.draw.choice(live)))

    def _explain(self) -> None:
        self.counts["explained"] += len(check_explanations(self.scheduler))

    def _reset(self) -> None:
        self.counts["resets"] += self.scheduler.reset_prefix_cache()

    # --- The end --------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Let everything end; sessions that wait for input are aborted."""
        self.connector.is_calm = True
        for _ in range(STEPS_MAX):
            self._grammar_ready()
            if self.scheduler.has_work():
                self._schedule()
            elif not self.flying:
                break
            self._update()
        self.scheduler.abort(
            [n for n in self._live() if self.scheduler.status(n) is Status.WAITING_FOR_STREAMING]
        )
        self._check_end()

    def _check_end(self) -> None:
        free, usable = self.scheduler.statistics().num_free_blocks, self.config.num_usable_blocks
        if self._live() or free != usable:
            raise MixedError(f"left are {self._live()}, and {free} of {usable} blocks are free")

    # --- Tokens ---------------------------------------------------------------------------------

    def _live(self) -> list[str]:
        return [name for name in self.given if self.scheduler.status(name) is not None]

    def _samples(self, name: str, output: StepOutput) -> list[int]:
        drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
        known = len(self.scheduler.token_ids(name)) if self.scheduler.status(name) else 0
        count = 1 + self.draw.randint(0, drafts)
        return [_token(name, known + place) for place in range(count)]

    def _tokens(self, name: str, count: int) -> list[int]:
        given = self.given[name]
        return [*given[:count], *(_token(name, place) for place in range(len(given), count))]


def _token(stem: str, place: int) -> int:
    """Return a token that depends on these alone."""
    return zlib.crc32(f"{stem}:{place}".encode()) % VOCABULARY
