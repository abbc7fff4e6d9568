"""How large a KV block is, and how many of them fit into the memory there is."""

import os
from pathlib import Path

import torch
from attrs import Attribute, field, frozen


def _at_least_one(_: object, attribute: "Attribute[int]", value: int) -> None:
    if value < 1:
        raise ValueError(f"{attribute.name}: got {value}, expected at least 1")


def _floating(_: object, attribute: "Attribute[torch.dtype]", value: torch.dtype) -> None:
    if not value.is_floating_point:
        raise ValueError(f"{attribute.name}: got {value}, expected a floating point type")


@frozen
class KVGeometry:
    """What one block holds: keys and values of ``block_size`` tokens in all layers.

    Raises ValueError for a size below 1 or a dtype that is not floating point.
    """

    num_layers: int = field(validator=_at_least_one)
    num_kv_heads: int = field(validator=_at_least_one)
    head_dim: int = field(validator=_at_least_one)
    block_size: int = field(default=16, validator=_at_least_one)
    dtype: torch.dtype = field(default=torch.float32, validator=_floating)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        tokens = self.num_layers * 2 * self.block_size
        return tokens * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    def num_blocks_for(self, budget_bytes: int) -> int:
        """Return how many blocks, the null block included, fit into ``budget_bytes``.

        Raises ValueError if not even the null block and one more fit.
        """
        if budget_bytes < 2 * self.block_bytes:
            raise ValueError(
                f"budget_bytes: got {budget_bytes}, expected at least {2 * self.block_bytes} for "
                "the null block and one more; give more memory or make block_size smaller"
            )
        return budget_bytes // self.block_bytes

    def check_fits(self, num_blocks: int, device: torch.device) -> None:
        """Raise MemoryError if ``num_blocks`` blocks need more than ``device`` has available."""
        needed, available = num_blocks * self.block_bytes, available_bytes(device)
        if available is not None and needed > available:
            raise MemoryError(
                f"a pool of {num_blocks} blocks needs {needed} bytes, but {device} has {available} "
                f"available; ask for at most {available // self.block_bytes} blocks"
            )


def fraction_of_free(memory_fraction: float, device: torch.device) -> int:
    """Return that fraction, above 0 and at most 1, of the free bytes of a CUDA device.

    Raises ValueError on a CPU: a pool there shares memory with everything else on the machine, so
    its size is the caller's to choose.
    """
    if device.type != "cuda":
        raise ValueError(
            f"memory_fraction: works on CUDA only, got device {device}; on the CPU choose "
            "num_blocks yourself, KVPool.num_blocks_for(bytes, ...) helps"
        )
    if not 0.0 < memory_fraction <= 1.0:
        raise ValueError(f"memory_fraction: got {memory_fraction}, expected above 0, at most 1")
    return int(torch.cuda.mem_get_info(device)[0] * memory_fraction)


def available_bytes(device: torch.device) -> int | None:
    """Return the bytes that can be allocated on ``device`` now, or None where nobody can say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
