"""The rows that move a block: out of the free queue into a table, and back through a fence."""

from kvproof.spec.expression import count_if
from kvproof.spec.roles import BLOCK_SIZE, block, fence, pool, request, step
from kvproof.spec.rows import Transition
from kvproof.spec.statuses import RUNNING
from kvproof.spec.variables import (
    block_table,
    fence_table,
    fenced,
    free,
    held,
    known,
    processed,
    queued,
    referenced,
    references,
    until,
)

r = request.index("r")
b = block.index("b")
e = fence.index("e")

GROW = Transition(
    name="grow",
    doc="A running request whose table does not cover its known tokens takes one free block.",
    rule="vLLM KVCacheManager.allocate_slots; BlockPool.get_new_blocks",
    parameters=(r, b),
    subject=r,
    source=(RUNNING,),
    guard=(queued[b], held[r] * BLOCK_SIZE < known[r]),
    effect=(
        queued[b].becomes(value=False),
        references[b].becomes(references[b] + 1),
        free[pool].becomes(free[pool] - 1),
        referenced[pool].becomes(referenced[pool] + 1),
        block_table[r, b].becomes(block_table[r, b] + 1),
        held[r].becomes(held[r] + 1),
    ),
    batched=True,
)

DRAIN = Transition(
    name="drain",
    doc="A fence whose last frame has been processed gives up one reference to a block.",
    rule="vLLM BlockPool.free_blocks; deferred frees of vllm#45357",
    parameters=(e, b),
    guard=(fence_table[e, b] >= 1, until[e] <= processed[step]),
    effect=(
        fence_table[e, b].becomes(fence_table[e, b] - 1),
        fenced[e].becomes(fenced[e] - 1),
        references[b].becomes(references[b] - 1),
        queued[b].becomes(references[b] == 1),
        free[pool].becomes(free[pool] + count_if(references[b] == 1)),
        referenced[pool].becomes(referenced[pool] - count_if(references[b] == 1)),
    ),
    drains=fence_table,
)

TRANSITIONS = (GROW, DRAIN)
