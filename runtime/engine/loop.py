"""The engine loop: decide, compute, sample, account; and again until nobody waits.

With a pool in debug mode every slot that a step writes is stamped with what it must hold, and every
slot that it reads is checked before the model runs. The stamps are made here and not by the
scheduler, so that a fault of the scheduler cannot hide itself. What a connector has loaded is
stamped when its load is reported; see `kvproof.runtime.engine.loaded_stamps`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Self

import torch
from attrs import frozen
from torch import Tensor

from kvproof.runtime.config import SchedulerConfig
from kvproof.runtime.connector import NOTHING_HAPPENED, Connector, TransferReport, joined
from kvproof.runtime.engine.content_keys import ContentKeys, extended
from kvproof.runtime.engine.frames import Frame, Frames
from kvproof.runtime.engine.loaded_stamps import LoadedStamps
from kvproof.runtime.engine.model import Model
from kvproof.runtime.engine.sampling import sample
from kvproof.runtime.errors import CallerError, RequestRefused
from kvproof.runtime.kv_pool import KVPool
from kvproof.runtime.request import Request, RequestOutput
from kvproof.runtime.scheduler import Scheduler
from kvproof.runtime.step_output import StepOutput
from kvproof.runtime.step_tensors import StepTensors

_SEEDS = range(-(2**63), 2**63)
_WAIT_SECONDS = 0.001

MakeConnector = Callable[[KVPool], Connector]


@frozen(eq=False, kw_only=True)
class _SampledRequest(Request):
    """A request with how it is sampled; the scheduler carries it and hands it back in each step."""

    temperature: float
    seed: int


class InferenceEngine:
    """A model, a scheduler and their KV memory, run step by step.

    With `max_steps_in_flight` of n in the configuration, the samples of a step are accounted for
    n - 1 steps later; until then they stay on the device. `num_slots_verified` counts the slots
    whose owner was checked before they were read. An engine with a connector must be closed.

    Raises:
        CallerError: If the scheduler's limits do not suit the pool or the model.

    """

    def __init__(
        self,
        model: Model,
        scheduler: Scheduler,
        pool: KVPool,
        *,
        connector: Connector | None = None,
    ) -> None:
        """Make an engine of parts that were made for each other.

        The connector is the scheduler's; in debug mode it must stamp what it loads, as one that
        `build` makes does.
        """
        _check_sizes(model, scheduler.config, pool)
        self.model, self.scheduler, self.pool = model, scheduler, pool
        self.connector = connector
        self.num_slots_verified = 0
        self._content = ContentKeys()
        self._frames = Frames(pool.device)
        self._transfers = NOTHING_HAPPENED
        self._num_requests = 0

    @classmethod
    def build(
        cls,
        model: Model,
        config: SchedulerConfig,
        *,
        make_connector: MakeConnector | None = None,
        debug: bool = False,
    ) -> Self:
        """Return an engine with a scheduler, a pool and perhaps a connector of its own.

        With `debug` freed blocks are filled with NaN, owners are verified before each read, and the
        declared invariants are checked after each call. `make_connector` is given the pool; `close`
        closes what it returns.
        """
        pool = model.new_pool(config.num_blocks, config.block_size, debug=debug)
        if make_connector is None:
            return cls(model, Scheduler(config, kv_pool=pool, debug=debug), pool)
        connector = inner = make_connector(pool)

        def tokens_of(request_id: str) -> list[int]:
            is_known = scheduler.status(request_id) is not None
            return scheduler.token_ids(request_id) if is_known else []

        try:
            if debug:
                connector = LoadedStamps(inner, pool, tokens_of)
            scheduler = Scheduler(config, kv_pool=pool, connector=connector, debug=debug)
            return cls(model, scheduler, pool, connector=connector)
        except BaseException:
            inner.close()
            raise

    def add(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        request_id: str | None = None,
        ignore_eos: bool = False,
        priority: int = 0,
    ) -> str:
        """Queue a prompt; return the request's id, by default `request-` and its number.

        Raises:
            RequestRefused: If the model or the scheduler cannot take it; nothing has changed then.

        """
        request = _SampledRequest(
            request_id=f"request-{self._num_requests}" if request_id is None else request_id,
            prompt_token_ids=tuple(prompt_token_ids),
            max_tokens=max_tokens,
            stop_token_ids=frozenset() if ignore_eos else {self.model.eos_token_id},
            priority=priority,
            temperature=temperature,
            seed=seed,
        )
        _check_request(request, self.model.config.vocabulary_size)
        self.scheduler.add_request(request)
        self._num_requests += 1
        return request.request_id

    def step(self) -> list[RequestOutput]:
        """Run one step; return what came back meanwhile, an entry for each request that sampled.

        If there is nothing to compute before a transfer ends, it waits for a moment.

        Raises:
            StaleRead: In debug mode, if a request would read a slot that is not its own.
            NotANumberError: If a request read keys or values that nobody wrote.

        """
        output = self.scheduler.schedule()
        for ended in output.finished_req_ids:
            self._content.forget(ended)
        self._frames.add(Frame(output, self._compute(output) if output.num_requests else None))
        if not output.num_requests:
            self._poll()
        # A step without requests has nothing to overlap with, and may be the last one.
        most = self.scheduler.config.max_steps_in_flight - 1 if output.num_requests else 0
        outputs: list[RequestOutput] = []
        while len(self._frames) > most:
            outputs += self._account(self._frames.take())
        if not output.num_requests and self.scheduler.has_work():
            time.sleep(_WAIT_SECONDS)
        return outputs

    def run(self) -> dict[str, list[int]]:
        """Run until every request and transfer has ended; return the tokens sampled, by request."""
        sampled: dict[str, list[int]] = {}
        while self.scheduler.has_work():
            for output in self.step():
                sampled.setdefault(output.request_id, []).extend(output.new_token_ids)
        return sampled

    def close(self) -> None:
        """Close the connector, if there is one; call it once, after the last step."""
        if self.connector is not None:
            self.connector.close()

    def _account(self, frame: Frame) -> list[RequestOutput]:
        sampled = () if frame.sampled is None else frame.sampled.cpu()
        transfers, self._transfers = self._transfers, NOTHING_HAPPENED
        return list(self.scheduler.update(frame.output, sampled, transfers))

    def _poll(self) -> TransferReport:
        """Add to what has happened to transfers since the last update, and return that."""
        if self.connector is not None:
            self._transfers = joined(self._transfers, self.connector.poll())
        return self._transfers

    def _compute(self, output: StepOutput) -> Tensor:
        tensors = output.to_tensors(self.model.device)
        self._frames.fill_in(output, tensors)
        if self.pool.debug:
            self._verify_contents(output, tensors)
        logits = self.model.forward(tensors, self.pool)
        # A synchronous load that failed is reported now, and whatever it misled is taken back.
        if failed := self._poll().failed_blocks:
            logits = logits.masked_fill(self._misled(output, tensors, failed)[:, None], 0)
        return self._sample(output, logits)

    def _misled(self, output: StepOutput, tensors: StepTensors, failed: frozenset[int]) -> Tensor:
        """Return which sampling requests read one of these blocks, bool [S]."""
        blocks = torch.tensor(sorted(failed), device=self.model.device)
        misled = torch.isin(tensors.block_table, blocks).any(dim=1)
        return misled[torch.tensor(output.sampling_places, device=self.model.device)]

    def _sample(self, output: StepOutput, logits: Tensor) -> Tensor:
        """Draw by seed and position, which a preemption does not change."""
        requests, ends = output.sampling_requests, output.computed + output.tokens
        return sample(
            logits,
            self._column([request.temperature for request in requests], torch.float32),
            self._column([request.seed for request in requests], torch.int64),
            self._column(ends[output.sampling_places].tolist(), torch.int64),
        )

    def _verify_contents(self, output: StepOutput, tensors: StepTensors) -> None:
        """Stamp what the step writes with what it must hold, and check all that it reads."""
        keys = [self._keys_of(name) for name in output.req_ids]
        ends = tensors.seq_lens.tolist()
        written = [
            key
            for own, start, end in zip(keys, output.computed.tolist(), ends, strict=True)
            for key in own[start:end]
        ]
        self.pool.stamp(tensors.slot_mapping, self._column(written, torch.int64), tensors.positions)
        longest = tensors.max_seq_len
        expected = [
            [*own[:end], *[0] * (longest - end)] for own, end in zip(keys, ends, strict=True)
        ]
        self.pool.verify_owner(tensors.block_table, tensors.seq_lens, self._table(expected))
        self.num_slots_verified += int(tensors.seq_lens.sum())

    def _keys_of(self, request_id: str) -> list[int]:
        """Return the keys of a request's tokens, those that are still in flight among them."""
        known = self.scheduler.token_ids(request_id)
        keys = self._content.of(request_id, known)
        return extended(keys, self._frames.tokens_ahead(request_id, len(known)))

    def _table(self, rows: list[list[int]]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=self.model.device)

    def _column(self, values: Sequence[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.model.device)


def _check_sizes(model: Model, config: SchedulerConfig, pool: KVPool) -> None:
    if (pool.num_blocks, pool.block_size) != (config.num_blocks, config.block_size):
        raise CallerError(
            f"the pool has {pool.num_blocks} blocks of {pool.block_size}, the scheduler"
            f" {config.num_blocks} of {config.block_size}; make both from one SchedulerConfig."
        )
    if config.max_model_len > model.config.context_length:
        raise CallerError(
            f"max_model_len is {config.max_model_len}, but the model's context is"
            f" {model.config.context_length}; lower max_model_len."
        )


def _check_request(request: _SampledRequest, vocabulary_size: int) -> None:
    """Refuse what the scheduler cannot know of, and what would otherwise fail in mid-step."""
    unknown = [t for t in request.prompt_token_ids if isinstance(t, int) and t >= vocabulary_size]
    if unknown:
        _refuse(request, f"saw the token {unknown[0]}; the model has {vocabulary_size}")
    if not request.temperature >= 0:
        _refuse(request, f"temperature is {request.temperature!r}; expected 0 or more")
    if not isinstance(request.seed, int) or request.seed not in _SEEDS:
        _refuse(request, f"seed is {request.seed!r}; expected a whole number of 64 bits")


def _refuse(request: _SampledRequest, message: str) -> None:
    raise RequestRefused(f"request {request.request_id!r}: {message}.")
