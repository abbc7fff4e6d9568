"""The tensors of a step, kept in buffers of fixed size and address and changed in place.

Between two decode steps almost nothing differs: every position is one further, and a few tables
have one more block. The buffers start from what the step before left in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from kvproof.core import State
from kvproof.core.arrays import ONE, Flags, Integers
from kvproof.runtime.config import SchedulerConfig
from kvproof.runtime.device_copies import DeviceCopies
from kvproof.runtime.errors import StepOrderError
from kvproof.runtime.request_table import RequestTable
from kvproof.runtime.step_tensors import StepTensors

if TYPE_CHECKING:
    from kvproof.runtime.step_output import StepOutput


class StepBuffers:
    """Host buffers for the largest step, and a copy of them on each other device that asks.

    With T = max_num_batched_tokens, B = max_num_seqs and W = max_blocks_per_request:
    `input_ids`, `positions`, `slot_mapping` int64 [T]; `query_start_loc` int32 [B + 1];
    `seq_lens` int32 [B]; `block_table` int32 [B, W], the null block beyond each table;
    `logits_indices` int64 [T].
    """

    def __init__(self, config: SchedulerConfig, state: State, table: RequestTable) -> None:
        """Allocate the buffers; host memory is pinned where there is CUDA."""
        tokens, batch = config.max_num_batched_tokens, config.max_num_seqs
        self._config, self._state, self._table = config, state, table
        self._copies = DeviceCopies(
            {
                "input_ids": _zeros(torch.int64, tokens),
                "positions": _zeros(torch.int64, tokens),
                "slot_mapping": _zeros(torch.int64, tokens),
                "query_start_loc": _zeros(torch.int32, batch + 1),
                "seq_lens": _zeros(torch.int32, batch),
                "block_table": _zeros(torch.int32, batch, config.max_blocks_per_request),
                "logits_indices": _zeros(torch.int64, tokens),
            }
        )
        self._host = {name: tensor.numpy() for name, tensor in self._copies.host.items()}
        self._entries = self._host["block_table"].reshape(-1)
        self._count = np.arange(max(tokens, batch, config.max_blocks_per_request) + 1)
        self._first_entry = self._count[:batch] * config.max_blocks_per_request
        self._block_size = np.array(config.block_size)
        self._rows: Integers = np.zeros(0, dtype=np.int64)
        self._serials: Integers = np.zeros(0, dtype=np.int64)
        self._position: Integers = np.zeros(state.request.capacity, dtype=np.int64)
        self._decode_rows = 0  # rows of query_start_loc that say one token a request
        self._filled_step = 0
        self._last_views: tuple[object, dict[str, Tensor]] = (None, {})
        self.current: StepOutput | None = None

    def tensors(self, output: StepOutput, device: torch.device | str) -> StepTensors:
        """Return the step as tensors; see `StepOutput.to_tensors`."""
        if output is not self.current:
            message = f"step {output.step} is not in flight; its buffers hold something else now."
            raise StepOrderError(message)
        if not output.num_requests:
            message = f"step {output.step} computes nothing; check total_num_scheduled_tokens."
            raise StepOrderError(message)
        self._fill(output)
        return self._view(output, _CPU if device in ("cpu", _CPU) else torch.device(device))

    def tokens_after(self, rows: Integers, known: Integers, counts: Integers) -> list[list[int]]:
        """Return `counts` tokens of each row that follow its `known` ones: its draft tokens."""
        store = self._table.tokens
        starts = (store.starts[rows] + known).tolist()
        pairs = zip(starts, counts.tolist(), strict=True)
        return [store.tokens[start : start + count].tolist() for start, count in pairs]

    def fill_current(self) -> None:
        """Fill in the step in flight while the tables of its requests are still theirs."""
        if self.current is not None and self.current.num_requests:
            self._fill(self.current)

    def leave(self, output: StepOutput) -> None:
        """Take note that a step is over; a later one is filled in before tables change."""
        if self.current is output:
            self.current = None
        else:
            self.fill_current()

    def forget(self, current: StepOutput | None) -> None:
        """Let nothing in the buffers count any more, for a scheduler that has gone back in time."""
        self.current = current
        self._filled_step, self._rows = -1, self._rows[:0]

    def _fill(self, output: StepOutput) -> None:
        if self._filled_step == output.step:
            return
        self._fill_block_table(output)
        if output.total_num_scheduled_tokens == output.num_requests:
            self._fill_decodes(output)
        else:
            self._fill_chunks(output)
        self._filled_step = output.step

    def _fill_decodes(self, output: StepOutput) -> None:
        """Fill in a step in which each request has one token."""
        batch = output.num_requests
        host, count = self._host, self._count
        self._fill_tokens(output.rows, output.computed, self._first_entry[:batch])
        host["seq_lens"][:batch] = output.computed + ONE
        if self._decode_rows < batch:
            host["query_start_loc"][: batch + 1] = count[: batch + 1]
            self._decode_rows = batch
        host["logits_indices"][: len(output.sampling_places)] = output.sampling_places

    def _fill_chunks(self, output: StepOutput) -> None:
        """Fill in a step in which some request has several tokens."""
        batch, host = output.num_requests, self._host
        ends = output.tokens.cumsum()
        which = np.repeat(self._count[:batch], output.tokens)
        offsets = self._count[: len(which)] - (ends - output.tokens)[which]
        firsts = self._first_entry[which]
        self._fill_tokens(output.rows[which], output.computed[which] + offsets, firsts)
        host["seq_lens"][:batch] = output.computed + output.tokens
        host["query_start_loc"][0] = 0
        host["query_start_loc"][1 : batch + 1] = ends
        self._decode_rows = 0
        self._fill_logits(output, ends[output.sampling_places])

    def _fill_logits(self, output: StepOutput, ends: Integers) -> None:
        """Want the logits of the last token of each sampling request, and before its drafts."""
        counts = output.most_samples
        within = np.arange(int(counts.sum())) - np.repeat(counts.cumsum(), counts)
        self._host["logits_indices"][: len(within)] = np.repeat(ends, counts) + within

    def _fill_tokens(self, rows: Integers, positions: Integers, firsts: Integers) -> None:
        """Fill in token, position and slot; `firsts` says where in `_entries` each table begins."""
        store, host, total, size = self._table.tokens, self._host, len(rows), self._block_size
        host["positions"][:total] = positions
        store.tokens.take(
            store.starts[rows] + positions, out=host["input_ids"][:total], mode="clip"
        )
        # slot = block * size + (position - index * size)
        index = positions // size
        slots = host["slot_mapping"][:total]
        slots[:] = self._entries[firsts + index]
        slots -= index
        slots *= size
        slots += positions

    def _fill_block_table(self, output: StepOutput) -> None:
        """Add the blocks that tables grew by; write anew those whose place in the batch is new."""
        fresh = self._fresh_places(output)
        if len(fresh):
            self._host["block_table"][fresh] = 0
            self._write(output, fresh)
        grown = output.stretch.grown_rows
        if len(grown) and len(fresh) < output.num_requests:
            known = output.stretch.grown_places
            places = self._places(output) if known is None else known
            if known is None and np.count_nonzero(grown[1:] == grown[:-1]):
                self._write(output, np.unique(places))
            else:
                last = self._state.request.held[grown] - ONE
                self._entries[self._first_entry[places] + last] = output.stretch.grown_blocks
        self._rows = output.rows

    def _fresh_places(self, output: StepOutput) -> Integers:
        """Return the places whose table is not the one that was there a step ago, grown."""
        batch = output.num_requests
        if self._filled_step != output.step - 1:
            self._serials = self._table.serial[output.rows]
            return self._count[:batch]
        if output.rows is self._rows:
            return self._count[:0]
        serials = self._table.serial[output.rows]
        changed: Flags = np.ones(batch, dtype=np.bool_)
        shared = min(batch, len(self._serials))
        changed[:shared] = serials[:shared] != self._serials[:shared]
        if again := [*output.new_rows, *output.resumed_rows]:
            # One that starts over may be back at its place in the next step, with another table.
            is_back = np.zeros(self._state.request.capacity, dtype=np.bool_)
            is_back[again] = True
            changed |= is_back[output.rows]
        self._serials = serials
        return changed.nonzero()[0]

    def _places(self, output: StepOutput) -> Integers:
        """Return the places in the batch of the rows that took blocks."""
        if len(self._position) < self._state.request.capacity:
            self._position = np.zeros(self._state.request.capacity, dtype=np.int64)
        self._position[output.rows] = self._count[: output.num_requests]
        return self._position[output.stretch.grown_rows]

    def _write(self, output: StepOutput, places: Integers) -> None:
        """Write whole tables, and the null block behind them."""
        rows = output.rows[places]
        held = self._state.request.held[rows]
        width = int(held.max())
        entries = self._state.request.block_table.rows[rows, :width]
        real = self._count[:width] < held[:, None]
        self._host["block_table"][places, :width] = np.where(real, entries, 0)

    def _view(self, output: StepOutput, device: torch.device) -> StepTensors:
        total, batch = output.total_num_scheduled_tokens, output.num_requests
        lengths = self._host["seq_lens"][:batch]
        longest = int(lengths[lengths.argmax()])  # in a quarter of the time of `max`
        size = self._config.block_size
        samples = len(output.sampling_places)
        if total != batch:
            samples = int(output.most_samples.sum())
        shape = (total, batch, -(-longest // size), samples)
        return StepTensors(
            **self._on_device(device, *shape),
            block_size=size,
            max_query_len=1 if total == batch else int(output.tokens.max()),
            max_seq_len=longest,
        )

    def _on_device(
        self, device: torch.device, total: int, batch: int, pages: int, samples: int
    ) -> dict[str, Tensor]:
        key = (device, total, batch, pages, samples)
        if device is not _CPU or key != self._last_views[0]:
            views = self._copies.on(
                device,
                {
                    "input_ids": total,
                    "positions": total,
                    "slot_mapping": total,
                    "query_start_loc": batch + 1,
                    "seq_lens": batch,
                    "block_table": batch,
                    "logits_indices": samples,
                },
            )
            views["block_table"] = views["block_table"][:, :pages]
            self._last_views = key, views
        return self._last_views[1]


_CPU = torch.device("cpu")


def _zeros(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=dtype, pin_memory=torch.cuda.is_available())
