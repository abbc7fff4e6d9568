"""What a step is to compute, in the field names of vLLM's `SchedulerOutput`.

The decision is a few arrays; the lists and dictionaries that a worker may want are built when they
are asked for, so that a scheduler whose engine takes tensors never pays for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from attrs import define, field, frozen
from numpy.typing import NDArray

from kvproof.core.arrays import Integers
from kvproof.runtime.request import Request
from kvproof.runtime.step_buffers import StepBuffers
from kvproof.runtime.step_plan import Stretch
from kvproof.runtime.step_tensors import StepTensors


@frozen
class NewRequestData:
    """A request that the workers see for the first time."""

    req_id: str
    prompt_token_ids: tuple[int, ...]
    block_ids: tuple[list[int], ...]
    num_computed_tokens: int


@frozen
class CachedRequestData:
    """Requests that the workers know; a resumed one's blocks replace its list, others append."""

    req_ids: list[str]
    resumed_req_ids: set[str]
    new_block_ids: list[tuple[list[int], ...] | None]
    num_computed_tokens: list[int]
    num_output_tokens: list[int]


@define(eq=False, slots=False)
class StepOutput:
    """One step: who runs, with how many tokens, on which new blocks.

    Attributes:
        step: the step's number; `update` wants it back in order.
        stretch: rows, tokens and new blocks, in the order of the batch.
        total_num_scheduled_tokens: tokens in the step.
        sampling_places: places in the batch of the requests that sample, int64 [S].
        requests: the requests in those rows, object [B].
        new_rows: the rows whose requests run for the first time.
        tables: the whole block tables of those and of resumed rows, hits first.
        resumed_rows: the rows whose requests run again after a preemption.
        resumed_req_ids: the ids of those requests.
        preempted_req_ids: requests that this step preempted.
        finished_req_ids: requests that ended since the step before.
        scheduled_encoder_inputs: items to compute in this step, by their places in mm_features.
        free_encoder_mm_hashes: identifiers of entries evicted from the encoder cache.
        tries_drafts: requests may have draft tokens at all.

    """

    step: int
    stretch: Stretch
    total_num_scheduled_tokens: int
    sampling_places: Integers
    requests: NDArray[Any]
    new_rows: tuple[int, ...]
    tables: Mapping[int, list[int]]
    resumed_rows: tuple[int, ...]
    resumed_req_ids: frozenset[str]
    preempted_req_ids: frozenset[str]
    finished_req_ids: frozenset[str]
    buffers: StepBuffers = field(repr=False)
    scheduled_encoder_inputs: dict[str, list[int]] = field(factory=dict)
    free_encoder_mm_hashes: list[str] = field(factory=list)
    tries_drafts: bool = True

    def to_tensors(self, device: torch.device | str = "cpu") -> StepTensors:
        """Return the step as tensors on `device`, for the step that was scheduled last.

        The tensors are views of buffers of fixed size and address; the next step overwrites them.

        Raises:
            StepOrderError: If a later step has been scheduled, or there is nothing to compute.

        """
        return self.buffers.tensors(self, device)

    @property
    def rows(self) -> Integers:
        """Rows of the request table in the order of the batch, int64 [B]."""
        return self.stretch.rows

    @property
    def tokens(self) -> Integers:
        """Tokens of each request in this step, int64 [B]."""
        return self.stretch.tokens

    @property
    def computed(self) -> Integers:
        """Tokens of each request that were computed before this step, int64 [B]."""
        return self.stretch.computed

    @property
    def num_requests(self) -> int:
        """Requests in the step."""
        return len(self.rows)

    @cached_property
    def most_samples(self) -> Integers:
        """Tokens that each sampling request can bring: one and its draft tokens, int64 [S]."""
        if not self.tries_drafts:
            return np.ones(len(self.sampling_places), dtype=np.int64)
        expected = np.maximum(self.stretch.known, self.computed + 1)
        drafts = self.computed + self.tokens - expected
        return drafts[self.sampling_places] + 1

    @cached_property
    def pending_places(self) -> Integers:
        """Places of the requests whose input token a frame in flight still brings, int64 [P].

        The frame that brings it is the last one before this step that samples from the request;
        `input_ids` has no meaning there until the sample has been filled in.
        """
        pending: Integers = (self.computed >= self.stretch.known).nonzero()[0]
        return pending

    @cached_property
    def scheduled_spec_decode_tokens(self) -> dict[str, list[int]]:
        """The draft tokens that each request tries in this step, where it tries any.

        Read it before `update`, which writes the accepted tokens in their place.
        """
        drafts = self.buffers.tokens_after(
            self.sampling_rows, self.stretch.known[self.sampling_places], self.most_samples - 1
        )
        return {
            name: tokens
            for name, tokens in zip(self.sampled_req_ids, drafts, strict=True)
            if tokens
        }

    @property
    def sampling_rows(self) -> Integers:
        """Rows of the requests from which this step samples, int64 [S]."""
        return self.rows if self._all_sample else self.rows[self.sampling_places]

    @property
    def sampling_requests(self) -> NDArray[Any]:
        """The requests from which this step samples, object [S]."""
        return self.requests if self._all_sample else self.requests[self.sampling_places]

    @property
    def _all_sample(self) -> bool:
        return len(self.sampling_places) == len(self.rows)

    @cached_property
    def req_ids(self) -> list[str]:
        """Ids of the requests, in the order of the batch."""
        return [request.request_id for request in self.requests]

    @cached_property
    def num_scheduled_tokens(self) -> dict[str, int]:
        """Tokens of each request in this step."""
        return dict(zip(self.req_ids, self.tokens.tolist(), strict=True))

    @cached_property
    def sampled_req_ids(self) -> list[str]:
        """Ids of the requests from which this step samples, in the order of `logits_indices`."""
        return [request.request_id for request in self.sampling_requests]

    @cached_property
    def new_block_ids(self) -> dict[str, list[int]]:
        """The blocks that each request took in this step; the whole table of one just admitted."""
        taken: dict[int, list[int]] = {row: [] for row in self.rows.tolist()}
        grown = zip(
            self.stretch.grown_rows.tolist(), self.stretch.grown_blocks.tolist(), strict=True
        )
        for row, block in grown:
            taken[row].append(block)
        taken |= {row: blocks for row, blocks in self.tables.items() if row in taken}
        return {name: taken[row] for name, row in self._rows_by_id.items()}

    @cached_property
    def scheduled_new_reqs(self) -> list[NewRequestData]:
        """The requests that run for the first time."""
        first = set(self.new_rows)
        return [self._new(i) for i, row in enumerate(self.rows.tolist()) if row in first]

    @cached_property
    def scheduled_cached_reqs(self) -> CachedRequestData:
        """The other requests of the step, as parallel lists."""
        first = set(self.new_rows)
        known = [i for i, row in enumerate(self.rows.tolist()) if row not in first]
        names = [self.req_ids[i] for i in known]
        return CachedRequestData(
            req_ids=names,
            resumed_req_ids=set(self.resumed_req_ids),
            new_block_ids=[_group(self.new_block_ids[name]) for name in names],
            num_computed_tokens=self.computed[known].tolist(),
            num_output_tokens=[self._sampled_before(i) for i in known],
        )

    @cached_property
    def _rows_by_id(self) -> dict[str, int]:
        return dict(zip(self.req_ids, self.rows.tolist(), strict=True))

    def _sampled_before(self, place: int) -> int:
        request: Request = self.requests[place]
        return int(self.stretch.known[place]) - len(request.prompt_token_ids)

    def _new(self, place: int) -> NewRequestData:
        request: Request = self.requests[place]
        return NewRequestData(
            request.request_id,
            request.prompt_token_ids,
            (self.new_block_ids[request.request_id],),
            int(self.computed[place]),
        )


def _group(blocks: list[int]) -> tuple[list[int], ...] | None:
    return (blocks,) if blocks else None
