"""A model that computes nothing: it stamps the slots that it writes, and checks those it reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from kvproof.runtime import KVPool, Request, Scheduler, SchedulerConfig, StepOutput, StepTensors
from kvproof.runtime.step_tensors import Chunk
from kvproof.verify.recorded_run import Disagreement


class StampingModel:
    """The smallest pool that tells whose each slot is, and a pass over a step's tensors.

    A wrong table shows itself as a slot that another request, another position or nobody has
    written. Owners are numbered here, so that a fault of the scheduler cannot hide itself.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        """Make a pool of one number a slot."""
        self.pool = KVPool(1, config.num_blocks, 1, 1, config.block_size, debug=True)
        self._owners: dict[Request, int] = {}

    def run(self, scheduler: Scheduler, output: StepOutput, *, tensors: bool = True) -> None:
        """Write and read as a model does that runs the step in flight.

        Args:
            scheduler: whose step it is; it knows the tokens, and who has been aborted meanwhile.
            output: the step.
            tensors: read the step's tensors; if not, its lists, as an engine without tensors does.

        Raises:
            StaleRead: If a request would read a slot that is not its own.
            Disagreement: If it would compute other tokens than its next ones.

        """
        alive = [i for i, request in enumerate(output.requests) if _runs(scheduler, request)]
        if tensors and output.num_requests:
            self._compute(scheduler, output.to_tensors(), output.requests, alive)
        elif alive:
            step = _from_lists(scheduler, output, alive)
            self._compute(scheduler, step, output.requests[alive], list(range(len(alive))))

    def _compute(
        self,
        scheduler: Scheduler,
        step: StepTensors,
        requests: NDArray[Any],
        alive: list[int],
    ) -> None:
        owners = step.positions.new_tensor([self._owner(request) for request in requests])
        counts = step.query_start_loc.diff().long()
        self.pool.stamp(step.slot_mapping, owners.repeat_interleave(counts), step.positions)
        rows = step.positions.new_tensor(alive)
        self.pool.verify_owner(step.block_table[rows], step.seq_lens[rows], owners[rows])
        for row in alive:
            _check_tokens(scheduler, step, row, requests[row].request_id)

    def _owner(self, request: Request) -> int:
        return self._owners.setdefault(request, len(self._owners))


def _runs(scheduler: Scheduler, request: Request) -> bool:
    """Return whether a request of the step in flight has not been aborted.

    A request that waits under the id of an aborted one has no step in flight.
    """
    status = scheduler.status(request.request_id)
    return status is not None and status.name == "RUNNING"


def _check_tokens(scheduler: Scheduler, step: StepTensors, row: int, name: str) -> None:
    first, end = step.query_start_loc[row : row + 2].tolist()
    seen = step.input_ids[first:end].tolist()
    known = scheduler.token_ids(name)
    expected = [known[position] for position in step.positions[first:end].tolist()]
    if seen != expected:
        raise Disagreement(f"output.to_tensors().input_ids[{first}:{end}] == {expected}", seen)


def _from_lists(scheduler: Scheduler, output: StepOutput, alive: Sequence[int]) -> StepTensors:
    chunks = []
    for row in alive:
        name, start = output.req_ids[row], int(output.computed[row])
        end = start + output.num_scheduled_tokens[name]
        tokens = scheduler.token_ids(name)[start:end]
        chunks.append(Chunk(tokens, scheduler.block_ids(name), start))
    return StepTensors.from_chunks(chunks, scheduler.config.block_size)
