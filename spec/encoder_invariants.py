"""What is always true of the encoder cache."""

from kvproof.spec.expression import all_of, any_of, before, choose, implies, total
from kvproof.spec.roles import ENCODER_BUDGET, ENCODER_SLOTS, item, pool, request, step
from kvproof.spec.rows import Invariant
from kvproof.spec.statuses import RUNNING
from kvproof.spec.variables import (
    computed,
    decoding,
    encoder_budget_left,
    encoder_free,
    encoder_idle,
    encoder_used,
    is_open,
    item_table,
    items_held,
    known,
    last_frame,
    passed,
    returned,
    size,
    status,
    users,
)

r = request.index("r")
x = request.index("x")
i = item.index("i")
j = item.index("j")

INVARIANTS = (
    Invariant(
        "encoder_slots_are_conserved",
        "Every slot of the encoder cache is free, used or idle.",
        encoder_free[pool] + encoder_used[pool] + encoder_idle[pool] == ENCODER_SLOTS,
        property="N4",
        rule="vllm#31857",
    ),
    Invariant(
        "used_slots_are_counted",
        "The stored number of used slots is that of the entries with users.",
        encoder_used[pool] == total(j, choose(users[j] >= 1, size[j], 0)),
        property="N4",
        rule="vLLM EncoderCacheManager.allocate",
    ),
    Invariant(
        "idle_slots_are_counted",
        "The stored number of idle slots is that of the entries without users.",
        encoder_idle[pool] == total(j, choose(users[j] == 0, size[j], 0)),
        property="N4",
        rule="vLLM EncoderCacheManager.can_allocate",
    ),
    Invariant(
        "users_are_exact",
        "An entry has as many users as there are requests that list it.",
        users[i] == total(x, item_table[x, i]),
        property="N4",
        rule="vLLM EncoderCacheManager.free_encoder_input",
    ),
    Invariant(
        "items_are_counted",
        "The stored number of entries that a request uses is the length of its list.",
        items_held[r] == total(j, item_table[r, j]),
        property="N4",
        rule="vLLM EncoderCacheManager.get_cached_input_ids",
    ),
    Invariant(
        "items_are_unique",
        "No request lists an entry twice.",
        item_table[r, i] <= 1,
        property="N4",
        rule="vLLM EncoderCacheManager.check_and_update_cache",
    ),
    Invariant(
        "used_entries_exist",
        "An entry that somebody uses has at least one embedding.",
        implies(users[i] >= 1, size[i] >= 1),
        property="N4",
        rule="vLLM EncoderCacheManager.allocate",
    ),
    Invariant(
        "only_running_uses_entries",
        "A request that is not RUNNING uses no entry: a refused admission has taken none.",
        implies(status[r] != RUNNING, items_held[r] == 0),
        property="N4",
        rule="vllm#31857",
    ),
    Invariant(
        "released_is_behind",
        "A released item lies behind what is computed for good: no rejected draft asks for it.",
        all_of(passed[r] <= computed[r], passed[r] <= known[r]),
        property="N4",
        rule="vllm#38551",
    ),
    Invariant(
        "released_by_a_frame_that_is_back",
        "An entry is released behind what frames that have come back have computed.",
        implies(
            passed[r] > before(passed[r]),
            any_of(
                last_frame[r] <= returned[step],
                all_of(decoding[r], passed[r] < known[r]),
            ),
        ),
        property="N6",
        rule="vllm#54284",
    ),
    Invariant(
        "encoder_budget_is_kept",
        "A step never computes more embeddings than its encoder budget.",
        encoder_budget_left[step] <= ENCODER_BUDGET,
        property="N4",
        rule="vLLM Scheduler._try_schedule_encoder_inputs",
    ),
    Invariant(
        "encoder_budget_is_of_a_step",
        "Embeddings are computed, and taken back, only while a step is open.",
        implies(
            encoder_budget_left[step] != before(encoder_budget_left[step]),
            is_open[step],
        ),
        property="N4",
        rule="vLLM Scheduler._try_schedule_encoder_inputs",
    ),
)
