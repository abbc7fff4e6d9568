"""What is always true of transfers, and of the requests and fences that wait for one."""

from kvproof.spec.expression import all_of, any_of, before, held_before, implies, larger, no
from kvproof.spec.moves import is_parked_to_be_loaded
from kvproof.spec.roles import BLOCK_SIZE, WATERMARK, block, fence, pool, request, step
from kvproof.spec.rows import Invariant
from kvproof.spec.statuses import (
    PREEMPTED,
    RUNNING,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
    queued_for_admission,
)
from kvproof.spec.variables import (
    block_table,
    computed,
    content,
    credit,
    decoding,
    drafts,
    fenced,
    free,
    held,
    known,
    landed,
    last_frame,
    loading,
    passed,
    pinned,
    place,
    preempted,
    preemptions,
    processed,
    remote,
    running,
    stale,
    status,
)

r = request.index("r")
b = block.index("b")
e = fence.index("e")

INVARIANTS = (
    Invariant(
        "only_parked_is_loaded",
        "Only a request in WAITING_FOR_REMOTE_KVS has a transfer, or is about to have one.",
        implies(
            status[r] != WAITING_FOR_REMOTE_KVS,
            all_of(no(loading[r]), remote[r] == 0),
        ),
        property="L2",
        rule="vllm#52969",
    ),
    Invariant(
        "load_has_room",
        "A transfer fills slots of the table, of tokens that are known and not yet computed.",
        all_of(
            implies(
                loading[r],
                all_of(remote[r] >= 1, computed[r] + remote[r] <= held[r] * BLOCK_SIZE),
            ),
            implies(
                all_of(status[r] == WAITING_FOR_REMOTE_KVS, any_of(loading[r], remote[r] == 0)),
                computed[r] + remote[r] <= known[r],
            ),
        ),
        property="S10",
        rule="vLLM KVCacheManager.allocate_slots, num_external_computed_tokens",
    ),
    Invariant(
        "loaded_starts_over",
        "A request that is loaded has no draft tokens and wants no sample in flight.",
        implies(
            any_of(status[r] == WAITING_FOR_REMOTE_KVS, landed[r]),
            all_of(
                drafts[r] == 0,
                no(decoding[r]),
                last_frame[r] <= larger(processed[step], stale[r]),
            ),
        ),
        property="L6",
        rule="vllm#53250",
    ),
    Invariant(
        "loaded_has_passed_no_item",
        "A request that is loaded has released no entry of the encoder cache in this attempt.",
        implies(any_of(status[r] == WAITING_FOR_REMOTE_KVS, landed[r]), passed[r] <= 0),
        property="N4",
        rule="vllm#38551",
    ),
    Invariant(
        "landed_has_its_kv",
        "A request that waits with loaded blocks holds all that is computed, and has more to do.",
        all_of(
            implies(
                landed[r],
                all_of(
                    queued_for_admission(status[r]),
                    computed[r] >= 1,
                    computed[r] < known[r],
                ),
            ),
            implies(
                any_of(status[r] == WAITING_FOR_REMOTE_KVS, landed[r]),
                computed[r] <= held[r] * BLOCK_SIZE,
            ),
        ),
        property="S10",
        rule="vLLM Scheduler._update_waiting_for_remote_kv",
    ),
    Invariant(
        "loaded_is_not_published",
        "Blocks that a transfer fills are published only when the request runs on them.",
        implies(
            all_of(content[b] >= 1, block_table[r, b] >= 1, status[r] != RUNNING),
            (place[r, b] + 1) * BLOCK_SIZE < known[r],
        ),
        property="S9",
        rule="vLLM KVCacheManager.allocate_slots, delay_cache_blocks",
    ),
    Invariant(
        "table_is_kept_while_loading",
        "A table is neither longer nor shorter while a transfer fills it.",
        implies(all_of(held_before(loading[r]), loading[r]), held[r] == before(held[r])),
        property="S4",
        rule="vllm#32255",
    ),
    Invariant(
        "load_ends_or_is_waited_for",
        "When a request gives up a table that a transfer fills, a fence waits for the transfer.",
        implies(
            all_of(
                held_before(loading[r]),
                no(loading[r]),
                held[r] < before(held[r]),
                fenced[e] > before(fenced[e]),
            ),
            pinned[e] >= 1,
        ),
        property="S4",
        rule="vllm#32255",
    ),
    Invariant(
        "fence_takes_one_table",
        "A table goes behind a fence only if nothing, and no transfer, waits there.",
        implies(
            fenced[e] > before(fenced[e]),
            all_of(before(fenced[e]) == 0, before(pinned[e]) == 0),
        ),
        property="S4",
        rule="vllm#32255",
    ),
    Invariant(
        "only_blocks_are_pinned",
        "A fence that waits for a transfer has blocks that it may touch.",
        implies(pinned[e] > before(pinned[e]), fenced[e] >= 1),
        property="S6",
        rule="vllm#43433",
    ),
    Invariant(
        "ended_load_brings_no_more",
        "When a load has ended, nothing more is to come of it.",
        implies(all_of(held_before(loading[r]), no(loading[r])), remote[r] == 0),
        property="S5",
        rule="vLLM Scheduler._update_from_kv_xfer_finished",
    ),
    Invariant(
        "preempting_step_loads_nobody",
        "A step that has preempted parks nobody to be loaded.",
        implies(
            is_parked_to_be_loaded(r),
            before(preempted[step]) == 0,
        ),
        property="V6",
        rule="vLLM Scheduler.schedule",
    ),
    Invariant(
        "load_fits",
        "A load is admitted only if what it brings fits into free blocks and hits.",
        implies(
            is_parked_to_be_loaded(r),
            remote[r] <= (before(free[pool]) + credit[step] - before(credit[step])) * BLOCK_SIZE,
        ),
        property="S8",
        rule="vllm#45388",
    ),
    Invariant(
        "load_keeps_the_watermark",
        "While others run, a load that is admitted leaves the watermark free.",
        implies(
            all_of(
                is_parked_to_be_loaded(r),
                before(running[pool]) >= 1,
            ),
            remote[r] + WATERMARK * BLOCK_SIZE
            <= (before(free[pool]) + credit[step] - before(credit[step])) * BLOCK_SIZE,
        ),
        property="S8",
        rule="vLLM KVCacheManager.allocate_slots, watermark_blocks",
    ),
    Invariant(
        "parks_for_a_load",
        "A request is parked to be loaded only if there is a token to load.",
        implies(
            is_parked_to_be_loaded(r),
            remote[r] >= 1,
        ),
        property="V7",
        rule="vLLM Scheduler.schedule, load_kv_async",
    ),
    Invariant(
        "loaded_is_what_it_was",
        "A request waits as preempted after its load exactly if it had been preempted before.",
        implies(
            all_of(
                held_before(status[r] == WAITING_FOR_REMOTE_KVS),
                status[r].is_in(WAITING, PREEMPTED),
            ),
            (status[r] == PREEMPTED) == (preemptions[r] >= 1),
        ),
        property="L2",
        rule="vLLM Scheduler._try_promote_blocked_waiting_request",
    ),
    Invariant(
        "pinned_is_kept",
        "No block leaves a fence while a transfer may still touch it.",
        implies(before(pinned[e]) >= 1, fenced[e] >= before(fenced[e])),
        property="S4",
        rule="vllm#32255; trt#12542",
    ),
)
