"""The rows that move a block: out of the free queue into a table, and back through a fence."""

from kvproof.spec.expected import expected
from kvproof.spec.expression import NumberParameter, any_of, count_if
from kvproof.spec.roles import BLOCK_SIZE, LOOKAHEAD, MAX_DRAFTS, block, fence, pool, request, step
from kvproof.spec.rows import Transition
from kvproof.spec.statuses import RUNNING, WAITING_FOR_REMOTE_KVS
from kvproof.spec.variables import (
    block_table,
    computed,
    content,
    credit,
    drafts,
    fence_table,
    fenced,
    free,
    held,
    is_open,
    known,
    pinned,
    place,
    queued,
    referenced,
    references,
    returned,
    until,
)

r = request.index("r")
b = block.index("b")
e = fence.index("e")
prefix = NumberParameter("prefix", "number of the prefix that ends with the block")
position = NumberParameter("position", "where the block stands in the table, from 0")

TAKE_ONE = (
    queued[b].becomes(value=False),
    references[b].becomes(references[b] + 1),
    content[b].becomes(0),
    free[pool].becomes(free[pool] - 1),
    referenced[pool].becomes(referenced[pool] + 1),
    place[r, b].becomes(held[r]),
    block_table[r, b].becomes(block_table[r, b] + 1),
    held[r].becomes(held[r] + 1),
)

GROW = Transition(
    name="grow",
    doc="A running request whose table does not cover its tokens takes one free block.",
    rule="vLLM KVCacheManager.allocate_slots; BlockPool.get_new_blocks",
    parameters=(r, b),
    subject=r,
    source=(RUNNING,),
    guard=(
        queued[b],
        any_of(MAX_DRAFTS == 0, computed[r] < known[r]),
        held[r] * BLOCK_SIZE < expected(r) + drafts[r] + LOOKAHEAD,
    ),
    effect=TAKE_ONE,
    batched=True,
)

SHARE = Transition(
    name="share",
    doc="A request just admitted, or about to load, takes over a published block it begins with.",
    rule="vLLM KVCacheManager.get_computed_blocks; BlockPool.touch; vllm#11565; lmc#2327",
    parameters=(r, b, prefix),
    subject=r,
    source=(RUNNING, WAITING_FOR_REMOTE_KVS),
    guard=(
        is_open[step],
        prefix >= 1,
        content[b] == prefix,
        any_of(references[b] == 0, block_table[r, b] == 0),
        computed[r] == held[r] * BLOCK_SIZE,
        computed[r] + BLOCK_SIZE < known[r],
        any_of(references[b] == 0, credit[step] >= 1),
    ),
    effect=(
        queued[b].becomes(value=False),
        free[pool].becomes(free[pool] - count_if(references[b] == 0)),
        referenced[pool].becomes(referenced[pool] + count_if(references[b] == 0)),
        credit[step].becomes(credit[step] - count_if(references[b] >= 1)),
        references[b].becomes(references[b] + 1),
        place[r, b].becomes(held[r]),
        block_table[r, b].becomes(block_table[r, b] + 1),
        held[r].becomes(held[r] + 1),
        computed[r].becomes(computed[r] + BLOCK_SIZE),
    ),
)

PUBLISH = Transition(
    name="publish",
    doc="A block whose tokens are all known, and written by a dispatched frame, can be shared.",
    rule="vLLM KVCacheManager.cache_blocks; vllm#43569",
    parameters=(r, position, b, prefix),
    subject=r,
    source=(RUNNING,),
    guard=(
        prefix >= 1,
        content[b] == 0,
        block_table.stands_at(r, position, b),
        (position + 1) * BLOCK_SIZE <= computed[r],
        (position + 1) * BLOCK_SIZE <= known[r],
    ),
    effect=(content[b].becomes(prefix),),
    batched=True,
)

PUBLISH_EARLY = Transition(
    name="publish_early",
    doc="A block is published when it is allocated, before anything has been written to it.",
    rule="vLLM KVCacheManager.cache_blocks; vllm#43569",
    parameters=(r, position, b, prefix),
    guard=(
        prefix >= 1,
        content[b] == 0,
        block_table.stands_at(r, position, b),
        (position + 1) * BLOCK_SIZE <= known[r],
    ),
    effect=(content[b].becomes(prefix),),
    batched=True,
    breaks=("published_is_written", "loaded_is_not_published", "published_by_the_running"),
)

FORGET = Transition(
    name="forget",
    doc="A free block is no longer published.",
    rule="vLLM BlockPool.reset_prefix_cache",
    parameters=(b,),
    guard=(queued[b], content[b] >= 1),
    effect=(content[b].becomes(0),),
    batched=True,
)

UNPUBLISH = Transition(
    name="unpublish",
    doc="A block whose content is not what it should be is no longer published, whoever holds it.",
    rule="vLLM BlockPool.evict_blocks",
    parameters=(b,),
    guard=(content[b] >= 1,),
    effect=(content[b].becomes(0),),
    breaks=("shared_is_published",),
)

GIVE_BACK_ONE = (
    fence_table[e, b].becomes(fence_table[e, b] - 1),
    fenced[e].becomes(fenced[e] - 1),
    references[b].becomes(references[b] - 1),
    queued[b].becomes(references[b] == 1),
    free[pool].becomes(free[pool] + count_if(references[b] == 1)),
    referenced[pool].becomes(referenced[pool] - count_if(references[b] == 1)),
)

DRAIN = Transition(
    name="drain",
    doc="A fence gives up one reference to a block when its last frame and transfers are over.",
    rule="vLLM BlockPool.free_blocks; deferred frees of vllm#45357",
    parameters=(e, b),
    guard=(fence_table[e, b] >= 1, until[e] <= returned[step], pinned[e] == 0),
    effect=GIVE_BACK_ONE,
    drains=fence_table,
)

DRAIN_EARLY = Transition(
    name="drain_early",
    doc="A block is given back although a frame in flight may still touch it.",
    rule="vLLM Scheduler._free_request_blocks, defer_block_free; vllm#45357",
    parameters=(e, b),
    guard=(fence_table[e, b] >= 1, pinned[e] == 0),
    effect=GIVE_BACK_ONE,
    drains=fence_table,
    breaks=("touched_is_protected",),
)

TRANSITIONS = (GROW, SHARE, PUBLISH, PUBLISH_EARLY, FORGET, UNPUBLISH, DRAIN, DRAIN_EARLY)
