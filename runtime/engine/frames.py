"""Steps that have been computed and not accounted for, and the samples that they bring.

With several steps in flight a request runs ahead of its samples: the token that a step takes as
input may be one that the step before has sampled and that no host has seen yet. It is kept on the
device, in the row of its request, and put in place there.
"""

from __future__ import annotations

from collections import deque

import torch
from attrs import frozen
from torch import Tensor

from kvproof.runtime.step_output import StepOutput
from kvproof.runtime.step_tensors import StepTensors


@frozen(eq=False)
class Frame:
    """A step and its samples, int64 [S] on the device of the model; none if it computed nothing."""

    output: StepOutput
    sampled: Tensor | None


class Frames:
    """The frames in flight, oldest first."""

    def __init__(self, device: torch.device) -> None:
        """Start with none."""
        self._frames: deque[Frame] = deque()
        self._last_samples = torch.zeros(0, dtype=torch.int64, device=device)

    def __len__(self) -> int:
        """Return how many frames are in flight."""
        return len(self._frames)

    def add(self, frame: Frame) -> None:
        """Take a new frame in, and keep what it has sampled for the steps to come."""
        self._frames.append(frame)
        if frame.sampled is not None and len(frame.sampled):
            rows = torch.tensor(frame.output.sampling_rows, device=self._last_samples.device)
            self._reserve(int(frame.output.sampling_rows.max()) + 1)
            self._last_samples[rows] = frame.sampled

    def take(self) -> Frame:
        """Return the oldest frame, which is in flight no longer."""
        return self._frames.popleft()

    def fill_in(self, output: StepOutput, tensors: StepTensors) -> None:
        """Put samples of frames in flight where `input_ids` of a step lacks them."""
        places = output.pending_places
        if len(places):
            device = self._last_samples.device
            where = tensors.query_start_loc[torch.tensor(places, device=device)].long()
            rows = torch.tensor(output.rows[places], device=device)
            tensors.input_ids[where] = self._last_samples[rows]

    def tokens_ahead(self, request_id: str, known: int) -> list[int]:
        """Return the tokens that frames in flight bring to a request beyond the known ones.

        It waits for the device, so it is for debug mode.
        """
        by_position: dict[int, int] = {}
        for frame in self._frames:
            by_position |= _samples_of(frame, request_id)
        ahead: list[int] = []
        while known + len(ahead) in by_position:
            ahead.append(by_position[known + len(ahead)])
        return ahead

    def _reserve(self, rows: int) -> None:
        missing = rows - len(self._last_samples)
        if missing > 0:
            self._last_samples = torch.nn.functional.pad(self._last_samples, (0, missing))


def _samples_of(frame: Frame, request_id: str) -> dict[int, int]:
    """Return what a frame has sampled for a request, by its position."""
    output = frame.output
    if frame.sampled is None or request_id not in output.sampled_req_ids:
        return {}
    index = output.sampled_req_ids.index(request_id)
    place = output.sampling_places[index]
    return {int(output.computed[place] + output.tokens[place]): int(frame.sampled[index])}
