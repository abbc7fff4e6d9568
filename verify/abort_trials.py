"""Aborts at random moments while blocks are loaded from a folder and written to it.

The model is arithmetic: what a request samples and what each slot holds is a function of its tokens
up to there, so that every slot that a step reads can be compared. Whatever is aborted when, all
blocks come back, no file is half written and no thread is left.
"""

from __future__ import annotations

from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from random import Random

import torch
from attrs import define, field, frozen

from kvproof.runtime import KVPool, Request, Scheduler, SchedulerConfig, StepOutput
from kvproof.runtime.connector import Connector, TransferReport
from kvproof.runtime.connectors.block_file import UnusableFileError
from kvproof.runtime.connectors.block_folder import SUFFIX, BlockFolder
from kvproof.runtime.connectors.folder import FolderConnector
from kvproof.runtime.engine.content_keys import ContentKeys
from kvproof.verify.connector_faults import ConnectorFaults
from kvproof.verify.faulty_connector import FaultyConnector

BLOCK_SIZE, NUM_BLOCKS, MODEL = 4, 41, "arithmetic"
LIVE_MAX, FAMILIES, VOCABULARY = 12, 48, 61
STEPS_AFTER_MAX = 20_000
FLOAT_INTEGERS = 2**24  # below it every whole number is a float32


class WrongContentError(AssertionError):
    """A request would have read a slot that holds something else than it should."""


@frozen
class AbortFigures:
    """What a run has seen.

    Attributes:
        aborts: requests that were aborted.
        by_status: how many of them were waiting, loading, running and so on.
        requests: all requests, the aborted ones among them.
        steps: steps that were scheduled.
        preemptions: preemptions.
        blocks_loaded: blocks that came from files.
        blocks_written: files that were written.
        slots_compared: slots that were read and found right.
        files: whole files at the end.
        files_unusable: files that cannot be read, or are half written; it must be 0.
        blocks_missing: blocks that have not come back; it must be 0.

    """

    aborts: int
    by_status: dict[str, int]
    requests: int
    steps: int
    preemptions: int
    blocks_loaded: int
    blocks_written: int
    slots_compared: int
    files: int
    files_unusable: int
    blocks_missing: int


@define
class _Live:
    tokens: list[int]
    content: torch.Tensor


@define(eq=False)
class AbortTrials:
    """A scheduler with a folder, requests that keep coming, and aborts.

    Raises WrongContentError, or BrokenInvariant, if anything is not as it should be.
    """

    folder: Path
    seed: int
    steps_in_flight: int = 1
    faults_percent: int = 0
    pool: KVPool = field(init=False)
    scheduler: Scheduler = field(init=False)
    _inner: FolderConnector = field(init=False)
    _connector: Connector = field(init=False)
    _random: Random = field(init=False)
    _live: dict[str, _Live] = field(factory=dict)
    _in_flight: deque[tuple[StepOutput, list[int]]] = field(factory=deque)
    _by_status: Counter[str] = field(factory=Counter)
    _counts: Counter[str] = field(factory=Counter)

    def __attrs_post_init__(self) -> None:
        """Make the parts; the connector is closed by `run`."""
        config = SchedulerConfig(
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            max_model_len=96,
            enable_prefix_caching=True,
            max_steps_in_flight=self.steps_in_flight,
        )
        self._random = Random(self.seed)
        self.pool = KVPool(1, NUM_BLOCKS, 1, 1, BLOCK_SIZE, debug=True)
        self._inner = FolderConnector(self.pool, self.folder, model=MODEL)
        self._connector = self._inner
        if self.faults_percent:
            choose, kinds = self._random.randrange, ConnectorFaults.all_kinds(self.faults_percent)
            self._connector = FaultyConnector(self._inner, choose, self.pool, kinds)
        self.scheduler = Scheduler(config, kv_pool=self.pool, connector=self._connector, debug=True)

    def run(self, aborts: int) -> AbortFigures:
        """Abort that many requests, one at a moment, let the others end, and close the connector.

        Raises TimeoutError if the others do not end.
        """
        try:
            while self._by_status.total() < aborts:
                self._refill()
                self._step(aborts)
            self._finish()
        finally:
            self._connector.close()
        return self._figures()

    @property
    def steps(self) -> int:
        """Steps that were scheduled so far."""
        return self._counts["steps"]

    def _finish(self) -> None:
        for _ in range(STEPS_AFTER_MAX):
            if not self.scheduler.has_work():
                return
            self._step(0)
        raise TimeoutError(f"there is still work after {STEPS_AFTER_MAX} steps; expected none")

    def _step(self, aborts: int) -> None:
        """Schedule and compute a step and account for the oldest, with an abort somewhere."""
        moment = self._random.randrange(4)
        self._abort(aborts, now=moment == 0)
        output = self.scheduler.schedule()
        self._counts["steps"] += 1
        self._in_flight.append((output, self._compute(output)))
        self._abort(aborts, now=moment == 1)
        most = self.steps_in_flight - 1 if output.num_requests else 0
        while len(self._in_flight) > most:
            self._account(*self._in_flight.popleft())
        self._abort(aborts, now=moment == 2)

    def _abort(self, aborts: int, *, now: bool) -> None:
        if not now or not self._live or self._by_status.total() >= aborts:
            return
        by_status: dict[str, list[str]] = {}
        for name in self._live:
            status = self.scheduler.status(name)
            by_status.setdefault("" if status is None else status.name, []).append(name)
        # First the status, for those who wait outnumber the others.
        status_name = self._random.choice(sorted(by_status))
        chosen = self._random.choice(by_status[status_name])
        del self._live[chosen]
        self._by_status[status_name] += len(self.scheduler.abort(chosen))

    def _refill(self) -> None:
        """Add requests up to a number; those of one family begin alike."""
        while len(self._live) < LIVE_MAX:
            name = f"request-{self._counts['requests']}"
            self._counts["requests"] += 1
            family, length = self._random.randrange(FAMILIES), 2 + self._random.randrange(40)
            most = 1 + self._random.randrange(24)
            tokens = [(family * 17 + place * place) % VOCABULARY for place in range(length + most)]
            keys = [key % FLOAT_INTEGERS for key in ContentKeys().of(name, tokens)]
            self._live[name] = _Live(tokens, torch.tensor(keys, dtype=torch.float32))
            self.scheduler.add_request(Request(name, tokens[:length], most))

    def _compute(self, output: StepOutput) -> list[int]:
        """Compare what the step reads, write what it writes, and return what it samples."""
        places = zip(output.req_ids, output.computed.tolist(), output.tokens.tolist(), strict=True)
        for name, start, count in places:
            self._read_and_write(name, start, count)
        ends = (output.computed + output.tokens)[output.sampling_places].tolist()
        pairs = zip(output.sampled_req_ids, ends, strict=True)
        return [self._live[name].tokens[end] for name, end in pairs]

    def _read_and_write(self, name: str, start: int, count: int) -> None:
        content = self._live[name].content
        blocks = torch.tensor(self.scheduler.block_ids(name))
        memory = self.pool.storage[:, 0, :, :, 0, 0]
        position = torch.arange(start + count)
        block, offset = blocks[position // BLOCK_SIZE], position % BLOCK_SIZE
        for side in (0, 1):
            found = memory[block[:start], side, offset[:start]]
            if not torch.equal(found, content[:start]):
                place = int((found != content[:start]).nonzero()[0])
                raise WrongContentError(
                    f"{name}: position {place}, block {int(block[place])}: saw"
                    f" {float(found[place])}, expected {float(content[place])}"
                )
            memory[block[start:], side, offset[start:]] = content[start : start + count]
        self._counts["slots compared"] += 2 * start

    def _account(self, output: StepOutput, sampled: list[int]) -> None:
        report: TransferReport = self._connector.poll()
        for result in self.scheduler.update(output, sampled, report):
            if result.finished:
                del self._live[result.request_id]

    def _figures(self) -> AbortFigures:
        files, unusable = self._files()
        loaded = self._inner.statistics()
        statistics = self.scheduler.statistics()
        return AbortFigures(
            aborts=self._by_status.total(),
            by_status=dict(self._by_status),
            requests=self._counts["requests"],
            steps=self._counts["steps"],
            preemptions=statistics.num_preemptions,
            blocks_loaded=loaded.blocks_loaded,
            blocks_written=loaded.blocks_written,
            slots_compared=self._counts["slots compared"],
            files=files,
            files_unusable=unusable,
            blocks_missing=NUM_BLOCKS - 1 - statistics.num_free_blocks,
        )

    def _files(self) -> tuple[int, int]:
        """Return how many files can be read, and how many cannot or are half written."""
        folder = BlockFolder(self.folder, self.pool, MODEL)
        like = torch.empty(self.pool.storage[0].shape, device="meta")
        names = [path.name for path in folder.path.iterdir()]
        whole = 0
        for name in names:
            with suppress(OSError, UnusableFileError, ValueError):
                folder.read(bytes.fromhex(name.removesuffix(SUFFIX)), like)
                whole += 1
        return whole, len(names) - whole
