"""What a worker knows that is told of each step only what is new, held against the scheduler."""

from __future__ import annotations

from attrs import define, field

from kvproof.runtime import Scheduler, StepOutput


@define
class WorkerView:
    """The block tables of a worker that follows the outputs of steps, as vLLM's model runner does.

    Attributes:
        tables: by request, the blocks that the worker has been told of.

    """

    tables: dict[str, list[int]] = field(factory=dict)

    def see(self, output: StepOutput, scheduler: Scheduler) -> None:
        """Follow a step that has just been scheduled.

        Raises:
            AssertionError: If the worker then has another table than the scheduler, or the tensors
                of the step have other blocks, slots, positions or known tokens.

        """
        self._follow(output)
        for name in output.req_ids:
            seen, expected = self.tables.get(name), scheduler.block_ids(name)
            assert seen == expected, f"the worker has {seen} as table of {name}, not {expected}"
        if output.num_requests:
            _check_tensors(output, scheduler)

    def _follow(self, output: StepOutput) -> None:
        for name in output.finished_req_ids:
            self.tables.pop(name, None)
        for new in output.scheduled_new_reqs:
            self.tables[new.req_id] = list(new.block_ids[0])
        cached = output.scheduled_cached_reqs
        for name, groups in zip(cached.req_ids, cached.new_block_ids, strict=True):
            blocks = [] if groups is None else groups[0]
            before = [] if name in cached.resumed_req_ids else self.tables[name]
            self.tables[name] = [*before, *blocks]


def _check_tensors(output: StepOutput, scheduler: Scheduler) -> None:
    tensors, first = output.to_tensors(), 0
    size, width = tensors.block_size, tensors.block_table.shape[1]
    drafts = output.scheduled_spec_decode_tokens
    chunks = zip(output.req_ids, output.computed.tolist(), output.tokens.tolist(), strict=True)
    for place, (name, start, count) in enumerate(chunks):
        table, rows = scheduler.block_ids(name), slice(first, first + count)
        positions = range(start, start + count)
        slots = [table[p // size] * size + p % size for p in positions]
        known = [*scheduler.token_ids(name), *drafts.get(name, ())][start : start + count]
        padded = [*table, *[0] * width][:width]
        assert tensors.block_table[place].tolist() == padded, f"the blocks of {name} are others"
        assert tensors.positions[rows].tolist() == list(positions), f"positions of {name}"
        assert tensors.slot_mapping[rows].tolist() == slots, f"the slots of {name} are others"
        seen = tensors.input_ids[rows].tolist()[: len(known)]
        assert seen == known, f"the tokens of {name} are {seen}, not {known}"
        first += count
