"""What is always true of blocks, tables, fences and the counts over them."""

from kvproof.spec.expression import all_of, any_of, before, choose, count_if, implies, total
from kvproof.spec.roles import (
    BLOCK_SIZE,
    MAX_RUNNING,
    TOTAL_BLOCKS,
    block,
    fence,
    pool,
    request,
    step,
)
from kvproof.spec.rows import Invariant
from kvproof.spec.statuses import RUNNING, queued_for_admission
from kvproof.spec.variables import (
    block_table,
    computed,
    content,
    fence_table,
    fenced,
    free,
    held,
    is_open,
    issued,
    known,
    last_frame,
    place,
    queued,
    referenced,
    references,
    returned,
    running,
    status,
    touched,
    until,
    waiting,
)

r = request.index("r")
x = request.index("x")
b = block.index("b")
y = block.index("y")
e = fence.index("e")
f = fence.index("f")

INVARIANTS = (
    Invariant(
        "conservation",
        "Every block is free or referenced, and none is both.",
        free[pool] + referenced[pool] == TOTAL_BLOCKS,
        property="S1",
        rule="sgl#35270",
    ),
    Invariant(
        "free_is_counted",
        "The stored number of free blocks is the length of the free queue.",
        free[pool] == total(b, queued[b]),
        property="S3",
        rule="vllm#24228",
    ),
    Invariant(
        "referenced_is_counted",
        "The stored number of referenced blocks is the number of blocks with a reference.",
        referenced[pool] == total(b, references[b] >= 1),
        property="S1",
        rule="sgl#35270",
    ),
    Invariant(
        "queued_means_unreferenced",
        "A block is in the free queue exactly when nothing names it.",
        queued[b] == (references[b] == 0),
        property="S3",
        rule="vllm#42571",
    ),
    Invariant(
        "references_are_exact",
        "A block has as many references as there are entries of tables and fences that name it.",
        references[b] == total(x, block_table[x, b]) + total(f, fence_table[f, b]),
        property="S2",
        rule="vllm#42571",
    ),
    Invariant(
        "references_are_counted",
        "All references together are the entries of all tables and fences.",
        total(b, references[b]) == total(x, held[x]) + total(f, fenced[f]),
        property="S2",
        rule="sgl#35270",
    ),
    Invariant(
        "held_is_counted",
        "The stored length of a block table is the number of its entries.",
        held[r] == total(y, block_table[r, y]),
        property="S2",
        rule="sgl-jax#982",
    ),
    Invariant(
        "fenced_is_counted",
        "The stored length of a fence is the number of its entries.",
        fenced[e] == total(y, fence_table[e, y]),
        property="S2",
        rule="ai-dynamo/dynamo#13398",
    ),
    Invariant(
        "entries_are_unique",
        "No table names a block twice, and an entry stands within its table.",
        all_of(
            block_table[r, b] <= 1,
            implies(block_table[r, b] >= 1, all_of(place[r, b] >= 0, place[r, b] < held[r])),
        ),
        property="S2",
        rule="vllm#42571",
    ),
    Invariant(
        "shared_is_published",
        "A block that several tables or fences name is published.",
        implies(references[b] >= 2, content[b] >= 1),
        property="S9",
        rule="vLLM BlockPool.touch",
    ),
    Invariant(
        "published_is_known",
        "A published block is for tokens that all of its holders know.",
        implies(
            all_of(content[b] >= 1, block_table[r, b] >= 1),
            (place[r, b] + 1) * BLOCK_SIZE <= known[r],
        ),
        property="S9",
        rule="vLLM KVCacheManager.cache_blocks",
    ),
    Invariant(
        "published_is_written",
        "A published block lies behind everything that its holders have still to compute.",
        implies(
            all_of(content[b] >= 1, block_table[r, b] >= 1),
            (place[r, b] + 1) * BLOCK_SIZE <= computed[r],
        ),
        property="S9",
        rule="vllm#43569",
    ),
    Invariant(
        "published_by_the_running",
        "A block is published only while the request that holds it runs.",
        implies(
            all_of(before(content[b]) == 0, content[b] >= 1, block_table[r, b] >= 1),
            status[r] == RUNNING,
        ),
        property="S9",
        rule="vLLM KVCacheManager.allocate_slots, delay_cache_blocks",
    ),
    Invariant(
        "content_is_stable",
        "A published block keeps its content until it is taken for something else, or forgotten.",
        any_of(content[b] == before(content[b]), before(content[b]) == 0, content[b] == 0),
        property="S9",
        rule="ovg-project/kvcached#362",
    ),
    Invariant(
        "writer_is_alone",
        "A block in which a request has still to compute is named by nobody else.",
        implies(
            all_of(block_table[r, b] >= 1, (place[r, b] + 1) * BLOCK_SIZE > computed[r]),
            references[b] == 1,
        ),
        property="S9",
        rule="vllm#29387",
        consequence=True,
    ),
    Invariant(
        "frame_touches_its_tables",
        "A frame touches every block of the tables of the requests that it runs.",
        implies(
            all_of(last_frame[r] != before(last_frame[r]), block_table[r, b] >= 1),
            touched[r, b] == last_frame[r],
        ),
        property="S4",
        rule="vllm#45357",
    ),
    Invariant(
        "touched_is_protected",
        "A block that a frame in flight touches is in a table or behind a fence of that frame.",
        implies(
            touched[r, b] > returned[step],
            choose(touched[r, b] <= last_frame[r], block_table[r, b], 0)
            + total(f, choose(touched[r, b] <= until[f], fence_table[f, b], 0))
            >= 1,
        ),
        property="S4",
        rule="vllm#45357",
    ),
    Invariant(
        "quiet_before_reuse",
        "No frame in flight touches a block of the free queue.",
        implies(queued[b], touched[r, b] <= returned[step]),
        property="S4",
        rule="vllm#45357",
        consequence=True,
    ),
    Invariant(
        "fences_are_numbered",
        "A fence waits for a dispatched frame, never for the open step.",
        until[e] + count_if(is_open[step]) <= issued[step],
        property="S4",
        rule="vllm#45357",
    ),
    Invariant(
        "fences_end_in_order",
        "A table that a frame in flight touches waits for the last dispatched frame.",
        implies(
            all_of(fenced[e] > before(fenced[e]), until[e] > returned[step]),
            until[e] + count_if(is_open[step]) == issued[step],
        ),
        property="S4",
        rule="vLLM Scheduler._free_request_blocks, defer_block_free",
    ),
    Invariant(
        "quiet_table_waits_for_no_frame",
        "The fence that takes a table which no frame in flight touches can be drained at once.",
        implies(
            all_of(
                held[r] < before(held[r]),
                before(last_frame[r]) <= before(returned[step]),
                fenced[e] > before(fenced[e]),
            ),
            until[e] <= returned[step],
        ),
        property="V8",
        rule="vLLM Scheduler._free_request_blocks, defer_block_free",
    ),
    Invariant(
        "running_is_counted",
        "The stored number of running requests is exact and within its bound.",
        all_of(
            running[pool] == total(x, status[x] == RUNNING),
            running[pool] <= MAX_RUNNING,
        ),
        property="L1",
        rule="vllm#52693",
    ),
    Invariant(
        "waiting_is_counted",
        "The stored number of waiting requests is exact.",
        waiting[pool] == total(x, queued_for_admission(status[x])),
        property="L1",
        rule="vllm#52693",
    ),
)
