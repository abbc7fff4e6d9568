"""Host tensors, and copies of them on other devices at addresses that never change."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class DeviceCopies:
    """Named host tensors; on the host itself they are handed out as they are."""

    def __init__(self, host: Mapping[str, Tensor]) -> None:
        """Keep the host tensors; copies are allocated when a device first asks."""
        self.host = dict(host)
        self._copies: dict[torch.device, dict[str, Tensor]] = {}

    def on(self, device: torch.device, lengths: Mapping[str, int]) -> dict[str, Tensor]:
        """Return the first `lengths[name]` rows of each tensor on `device`, brought up to date.

        The copies are ordered on the device's current stream; nothing waits for them here.
        """
        if device.type == "cpu":
            return {name: self.host[name][:length] for name, length in lengths.items()}
        copies = self._copies.setdefault(device, self._allocate(device))
        return {
            name: copies[name][:length].copy_(self.host[name][:length], non_blocking=True)
            for name, length in lengths.items()
        }

    def _allocate(self, device: torch.device) -> dict[str, Tensor]:
        if device in self._copies:
            return self._copies[device]
        return {name: torch.zeros_like(host, device=device) for name, host in self.host.items()}
