"""A model that computes nothing: it stamps the slots that it writes, and checks those it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from attrs import frozen

from kvproof.runtime import KVPool, Request, Scheduler, SchedulerConfig, StepOutput, StepTensors
from kvproof.runtime.step_tensors import Chunk
from kvproof.verify.recorded_run import Disagreement


@frozen
class Reading:
    """What one request of a step is to find in memory, and how much of it was there before.

    `contents` says for each of `tokens` what its slot holds: a number for the salt, the items and
    all tokens up to there. The scheduler knows `known` of the tokens; a step in flight samples the
    others, and the model has them from there.
    """

    request: Request
    tokens: list[int]
    contents: list[int]
    start: int
    known: int


class StampingModel:
    """The smallest pool that tells what is in each slot, and a pass over a step's tensors.

    A wrong table shows itself as a slot that holds something else than the request's tokens up to
    there, or that nobody has written. So requests may share what is equal, and nothing else.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        """Make a pool of one number a slot."""
        self.pool = KVPool(1, config.num_blocks, 1, 1, config.block_size, debug=True)
        self._numbers: dict[tuple[int, int | str, str], int] = {}
        self._step: list[Reading] = []

    def see(
        self,
        scheduler: Scheduler,
        output: StepOutput,
        coming: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        """Take note of the tokens of a step that has just been scheduled, before any abort.

        `coming` are the tokens that steps in flight bring, by request.
        """
        drafts = output.scheduled_spec_decode_tokens
        self._step = []
        for request, start in zip(output.requests, output.computed.tolist(), strict=True):
            name = request.request_id
            given = scheduler.token_ids(name) + drafts.get(name, [])
            tokens = [*given, *coming.get(name, [])][: start + output.num_scheduled_tokens[name]]
            contents = self._contents(request, tokens)
            self._step.append(Reading(request, tokens, contents, start, len(given)))

    def run(self, scheduler: Scheduler, output: StepOutput, *, tensors: bool = True) -> None:
        """Write and read as a model does that runs the step in flight.

        Args:
            scheduler: whose step it is; it knows who has been aborted meanwhile.
            output: the step, the last that was seen.
            tensors: read the step's tensors; if not, its lists, as an engine without tensors does.

        Raises:
            StaleRead: If a request would read a slot that does not hold what it should.
            Disagreement: If it would compute other tokens than its next ones.

        """
        alive = [i for i, reading in enumerate(self._step) if _runs(scheduler, reading.request)]
        if tensors and output.num_requests:
            self._compute(output.to_tensors(), self._step, alive)
        elif alive:
            readings = [self._step[i] for i in alive]
            self._compute(_from_lists(scheduler, readings), readings, list(range(len(alive))))

    def _compute(
        self, step: StepTensors, readings: Sequence[Reading], alive: Sequence[int]
    ) -> None:
        written = [number for r in readings for number in r.contents[r.start :]]
        owners = step.positions.new_tensor(written)
        if len(written) != len(step.positions):
            raise Disagreement(f"len(output.to_tensors().positions) == {len(written)}", owners)
        self.pool.stamp(step.slot_mapping, owners, step.positions)
        expected = step.positions.new_zeros(len(readings), max(len(r.tokens) for r in readings))
        for row, reading in enumerate(readings):
            expected[row, : len(reading.contents)] = torch.tensor(reading.contents)
        rows = step.positions.new_tensor(alive)
        self.pool.verify_owner(step.block_table[rows], step.seq_lens[rows], expected[rows])
        for row in alive:
            _check_tokens(step, row, readings[row])

    def _contents(self, request: Request, tokens: Sequence[int]) -> list[int]:
        """Return a number for each token: the same for the same salt, items and tokens so far."""
        items = {
            position: item.identifier
            for item in request.mm_features
            for position in range(item.offset, item.end)
        }
        number = self._number(0, request.cache_salt, "")
        contents = []
        for position, token in enumerate(tokens):
            number = self._number(number, token, items.get(position, ""))
            contents.append(number)
        return contents

    def _number(self, before: int, token: int | str, item: str) -> int:
        return self._numbers.setdefault((before, token, item), len(self._numbers) + 1)


def _runs(scheduler: Scheduler, request: Request) -> bool:
    """Return whether a request of the step in flight has not been aborted.

    A request that waits under the id of an aborted one has no step in flight.
    """
    status = scheduler.status(request.request_id)
    return status is not None and status.name == "RUNNING"


def _check_tokens(step: StepTensors, row: int, reading: Reading) -> None:
    first = int(step.query_start_loc[row])
    expected = reading.tokens[reading.start : reading.known]
    end = first + len(expected)
    seen = step.input_ids[first:end].tolist()
    if seen != expected:
        raise Disagreement(f"output.to_tensors().input_ids[{first}:{end}] == {expected}", seen)


def _from_lists(scheduler: Scheduler, readings: Sequence[Reading]) -> StepTensors:
    chunks = []
    for reading in readings:
        tokens = reading.tokens[reading.start :]
        blocks = scheduler.block_ids(reading.request.request_id)
        chunks.append(Chunk(tokens, blocks, reading.start))
    return StepTensors.from_chunks(chunks, scheduler.config.block_size)
