"""Where equality is exact: the same logits, bit for bit, on other blocks and on a reused prefix."""

from __future__ import annotations

import torch
from rich.console import Console
from rich.text import Text

from kvproof.cli.demo_workload import Workload
from kvproof.runtime.engine import Model
from kvproof.runtime.step_tensors import Chunk, StepTensors


def compare(console: Console, workload: Workload, block_size: int) -> list[str]:
    """Print both comparisons; return a sentence for each that is not exact."""
    found = {
        "on other blocks": _renamed_is_equal(workload, block_size),
        "on a prefix that another request computed": _reused_is_equal(workload, block_size),
    }
    for where, equal in found.items():
        says = "equal bit for bit" if equal else "NOT equal bit for bit"
        console.print(Text(f"logits {where}: {says}", "green" if equal else "bold red"))
    return [f"logits {where} differ" for where, equal in found.items() if not equal]


def _renamed_is_equal(workload: Workload, block_size: int) -> bool:
    """Compute one prompt on two disjoint lists of blocks."""
    tokens = workload.token_ids[0]
    count = -(-len(tokens) // block_size)
    first, second = range(1, count + 1), range(2 * count, count, -1)
    return torch.equal(
        _logits(workload.model, [Chunk(tokens, first)], 2 * count, block_size),
        _logits(workload.model, [Chunk(tokens, second)], 2 * count, block_size),
    )


def _reused_is_equal(workload: Workload, block_size: int) -> bool:
    """Compute the rest of a prompt behind its own first blocks, and behind another's."""
    one, other = workload.token_ids[0], workload.token_ids[1]
    common = next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    shared = common // block_size
    start, count = shared * block_size, -(-len(one) // block_size)
    prefix, tail = list(range(1, shared + 1)), list(range(shared + 1, count + 1))
    rest = Chunk(one[start:], [*prefix, *tail], start=start)
    own = [Chunk(one[:start], prefix, samples=False), rest]
    anothers = [Chunk(other[:start], prefix, samples=False), rest]
    return torch.equal(
        _logits(workload.model, own, count, block_size),
        _logits(workload.model, anothers, count, block_size),
    )


def _logits(model: Model, chunks: list[Chunk], blocks: int, block_size: int) -> torch.Tensor:
    """Run chunks one after the other in a fresh pool; return the logits of the last."""
    pool = model.new_pool(blocks + 1, block_size)
    for chunk in chunks:
        step = StepTensors.from_chunks([chunk], block_size, model.device)
        logits = model.forward(step, pool)
    return logits
