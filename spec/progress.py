"""Why the scheduler goes on: what the configuration must satisfy, what falls, what is enabled."""

from kvproof.spec.expression import Formula, Number, all_of, any_of, choose, count_if, no, total
from kvproof.spec.request_transitions import needy, vacant, victim
from kvproof.spec.roles import (
    BLOCK_SIZE,
    ENCODER_SLOTS,
    LOOKAHEAD,
    TOKEN_BUDGET,
    TOTAL_BLOCKS,
    block,
    fence,
    item,
    pool,
    request,
    step,
)
from kvproof.spec.rows import Measure, Progress
from kvproof.spec.service_order import goes_before, goes_first
from kvproof.spec.statuses import (
    ABSENT,
    RUNNING,
    WAITING_FOR_REMOTE_KVS,
    finished,
    live,
    parked,
    queued_for_admission,
)
from kvproof.spec.variables import (
    budget_left,
    content,
    decoding,
    encoder_budget_left,
    encoder_idle,
    fence_table,
    fenced,
    free,
    held,
    is_deferring,
    is_open,
    issued,
    item_table,
    items_held,
    known,
    landed,
    limit,
    load_failed,
    loading,
    pinned,
    preempted,
    processed,
    remote,
    returned,
    running,
    scheduled,
    size,
    status,
    users,
    waiting,
)

u = request.index("u")
f = request.index("f")
x = request.index("x")
b = block.index("b")
e = fence.index("e")
i = item.index("i")
j = item.index("j")
g = fence.index("g")

# What happens to the oldest frame in flight, step by step; nothing else can hold it up.
ACCOUNTING = ("come_back", "accept", "accept_one", "process")


def no_frame_in_flight() -> Formula:
    """Return whether every dispatched frame is over."""
    return processed[step] + count_if(is_open[step]) == issued[step]


def blocks_nobody_gives_back() -> Number:
    """Return the blocks of those that do not run, and of fences that wait for a transfer."""
    return (
        total(x, choose(status[x] == RUNNING, 0, held[x]))
        + total(g, fenced[g])
        - total(g, choose(pinned[g] == 0, fenced[g], 0))
    )


def nobody_runs() -> Formula:
    """Return whether nobody runs, so that all that is held is held by others."""
    return all_of(
        running[pool] == 0,
        total(x, held[x]) == total(x, choose(status[x] == RUNNING, 0, held[x])),
    )


def nothing_is_transferred() -> Formula:
    """Return whether no request and no fence waits for a transfer."""
    return all_of(
        total(x, status[x] == WAITING_FOR_REMOTE_KVS) == 0,
        total(g, pinned[g]) == 0,
    )


# Why blocks that are missing are held by somebody: the invariants that such proofs rest on.
ROOM = (
    "conservation",
    "referenced_is_counted",
    "references_are_counted",
    "fenced_is_counted",
    "frames_in_flight",
    "fences_are_numbered",
    "pinned_minimum",
    "held_minimum",
    "references_minimum",
    "claimed_minimum",
    "fenced_minimum",
    "fence_table_minimum",
    "running_is_counted",
)

# Why a running request can be served: that, and what is known of requests that run.
ENOUGH_TO_RUN = (
    *ROOM,
    "frames_are_numbered",
    "free_is_counted",
    "queued_means_unreferenced",
    "items_held_minimum",
    "claims_leave_room",
    "only_running_holds",
    "held_is_counted",
    "tokens_in_order",
    "complete_has_its_table",
    "sample_is_in_flight",
    "sample_is_wanted",
    "closed_step_is_empty",
    "budget_is_spent_once",
    "scheduled_minimum",
    "table_covers_tokens",
    "request_has_a_prompt",
    "computed_minimum",
    "drafts_minimum",
    "waiting_starts_over",
    "decoding_has_computed",
    "landed_has_its_kv",
)

MEASURES = (
    Measure(
        "tokens_to_sample",
        "Tokens that live requests may still sample; only an arrival adds to them.",
        total(x, choose(live(status[x]), limit[x] - known[x], 0)),
        lowered_by=(
            "accept",
            "accept_one",
            "accept_miscounted",
            "accept_late",
            "finish_stopped_late",
            "finish_length_late",
        ),
        raised_by=("arrive", "arrive_unchecked", "grammar_ready", "continue_session"),
    ),
    Measure(
        "requests_to_end",
        "Requests that have not ended; each is ended once, by one row, and only an arrival adds.",
        total(x, any_of(live(status[x]), parked(status[x]))),
        lowered_by=(
            "finish_stopped",
            "finish_length",
            "finish_stopped_late",
            "finish_length_late",
            "finish_error",
            "abort",
        ),
        raised_by=("arrive", "arrive_unchecked"),
        property="L4",
    ),
    Measure(
        "rows_taken",
        "Rows of the request table that are taken; each is left once, by one row.",
        total(x, status[x] != ABSENT),
        lowered_by=("retire",),
        raised_by=("arrive", "arrive_unchecked"),
        property="L5",
    ),
    Measure(
        "transfers_in_flight",
        "Transfers that have not ended; each ends once, however often its end is reported.",
        total(x, loading[x]) + total(g, pinned[g]),
        lowered_by=("land", "fail_load", "lose_load", "unpin"),
        raised_by=("start_load", "pin"),
        property="S5",
    ),
    Measure(
        "loads_to_try",
        "Requests that may still be parked to be loaded; who was not brought anything may not.",
        total(
            x,
            all_of(queued_for_admission(status[x]), no(landed[x]), no(load_failed[x])),
        ),
        lowered_by=("await_load",),
        raised_by=(
            "arrive",
            "arrive_unchecked",
            "grammar_ready",
            "continue_session",
            "preempt",
            "preempt_at_will",
            "preempt_in_flight",
        ),
    ),
    Measure(
        "blocks_nobody_gives_back",
        "Blocks of those that do not run, and of fences that wait for a transfer.",
        blocks_nobody_gives_back(),
        lowered_by=("admit_landed", "admit_landed_chunk"),
        raised_by=("grow_for_load", "share", "pin"),
        property="V3",
    ),
    Measure(
        "budget",
        "Tokens that the open step may still schedule.",
        budget_left[step],
        lowered_by=("schedule", "schedule_miscounted"),
        raised_by=("begin", "unschedule"),
        property="N5",
    ),
    Measure(
        "requests_in_step",
        "Requests that the open step has scheduled.",
        total(x, scheduled[x] >= 1),
        lowered_by=("unschedule",),
        raised_by=("schedule", "schedule_miscounted"),
        property="N3",
    ),
    Measure(
        "open_steps",
        "Steps that are open and not dispatched.",
        count_if(is_open[step]),
        lowered_by=("dispatch", "withdraw"),
        raised_by=("begin",),
    ),
    Measure(
        "frames_in_flight_count",
        "Frames that have been opened and not processed.",
        issued[step] - processed[step],
        lowered_by=("process", "process_miscounted", "withdraw"),
        raised_by=("begin",),
        property="N6",
    ),
    Measure(
        "frames_out",
        "Frames whose outputs have not come back.",
        issued[step] - returned[step],
        lowered_by=("come_back", "withdraw"),
        raised_by=("begin",),
        property="V8",
    ),
    Measure(
        "free_blocks",
        "Free blocks; a table that grows takes one.",
        free[pool],
        lowered_by=("grow", "grow_for_load", "grow_miscounted"),
        raised_by=("drain", "drain_early"),
    ),
    Measure(
        "published_blocks",
        "Blocks that can be shared.",
        total(b, content[b] >= 1),
        lowered_by=("forget", "unpublish"),
        raised_by=("publish", "publish_early"),
        property="S9",
    ),
    Measure(
        "unpublished_blocks",
        "Blocks that cannot be shared; to publish one is to have one fewer.",
        total(b, content[b] == 0),
        lowered_by=("publish", "publish_early"),
        raised_by=("grow", "grow_miscounted", "grow_for_load", "forget", "unpublish"),
        property="S9",
    ),
    Measure(
        "encoder_budget",
        "Embeddings that the open step may still compute.",
        encoder_budget_left[step],
        lowered_by=("encode",),
        raised_by=("begin", "unencode"),
        property="N4",
    ),
    Measure(
        "entries_in_use",
        "Uses of entries of the encoder cache.",
        total(x, items_held[x]),
        lowered_by=("unencode", "release", "let_go"),
        raised_by=("encode", "reuse"),
        property="N4",
    ),
    Measure(
        "idle_slots",
        "Slots of entries that nobody uses.",
        encoder_idle[pool],
        lowered_by=("evict",),
        raised_by=("release", "let_go"),
        property="N4",
    ),
    Measure(
        "fenced_blocks",
        "Blocks behind fences; each drains once.",
        total(g, fenced[g]),
        lowered_by=("drain", "drain_early"),
        raised_by=(
            "preempt",
            "preempt_at_will",
            "preempt_in_flight",
            "finish_stopped",
            "finish_length",
            "abort",
            "park_session",
            "start_over",
            "start_over_preempted",
            "restart",
            "finish_error",
        ),
        property="S6",
    ),
    Measure(
        "requests_waiting",
        "Requests that wait for admission.",
        waiting[pool],
        lowered_by=(
            "admit",
            "admit_past_loaded",
            "admit_chunk",
            "admit_landed",
            "admit_landed_chunk",
            "await_load",
            "await_load_regardless",
            "await_grammar",
            "finish_stopped_late",
            "finish_length_late",
        ),
        raised_by=(
            "arrive",
            "arrive_unchecked",
            "grammar_ready",
            "continue_session",
            "preempt",
            "preempt_at_will",
            "preempt_in_flight",
            "promote",
            "promote_preempted",
            "start_over",
            "start_over_preempted",
            "restart",
        ),
    ),
    Measure(
        "requests_running",
        "Running requests; a step that preempts gets them back only after it has ended.",
        running[pool],
        lowered_by=(
            "preempt",
            "preempt_at_will",
            "preempt_in_flight",
            "finish_stopped",
            "finish_length",
            "park_session",
            "restart",
        ),
        raised_by=(
            "admit",
            "admit_past_loaded",
            "admit_chunk",
            "admit_landed",
            "admit_landed_chunk",
        ),
        property="V6",
    ),
)

PROGRESS = (
    Progress(
        "fresh_step_does_something",
        "A fresh step with an unfinished request, and no frame or transfer in flight, can admit,"
        " grow, schedule, drain, finish or preempt, whatever has been loaded.",
        (u, f, e),
        all_of(
            live(status[u]),
            any_of(nobody_runs(), goes_first(f)),
            any_of(
                total(x, landed[x]) == 0,
                total(x, all_of(status[x] == RUNNING, held[x] == 0)) == 0,
            ),
            nothing_is_transferred(),
            is_open[step],
            no_frame_in_flight(),
            no(is_deferring[step]),
            budget_left[step] == TOKEN_BUDGET,
            preempted[step] == 0,
            total(x, items_held[x]) == 0,
            *vacant(e),
        ),
        rows=(
            "admit",
            "admit_landed",
            "grow",
            "schedule",
            "drain",
            "finish_stopped",
            "finish_length",
            "preempt",
        ),
        uses=(
            *ENOUGH_TO_RUN,
            "claim_covers_tokens",
            "table_is_within_its_claim",
            "claims_fit",
            "claims_are_counted",
            "only_loaded_claim",
            "loaded_is_counted",
            "fits_an_empty_pool",
            "waiting_is_incomplete",
            "table_is_no_longer_than_needed",
        ),
    ),
    Progress(
        "first_running_goes_on",
        "The running request that goes before all others gets on, and they must give way, while all"
        " that it knows fits beside what is loaded and what transfers hold.",
        (u, e),
        all_of(
            goes_first(u),
            total(x, held[x]) - total(x, choose(status[x] == RUNNING, 0, held[x]))
            == held[u]
            + total(x, choose(all_of(status[x] == RUNNING, goes_before(u, x)), held[x], 0)),
            is_open[step],
            no_frame_in_flight(),
            no(is_deferring[step]),
            budget_left[step] == TOKEN_BUDGET,
            total(x, items_held[x]) == 0,
            known[u] + LOOKAHEAD <= (TOTAL_BLOCKS - blocks_nobody_gives_back()) * BLOCK_SIZE,
            *vacant(e),
        ),
        rows=("grow", "schedule", "drain", "finish_stopped", "finish_length", "preempt"),
        fixed={"grow": {"r": u}, "schedule": {"r": u}, "preempt": {"needy": u}},
        only={"preempt": goes_before(needy, victim)},
        uses=ENOUGH_TO_RUN,
    ),
    Progress(
        "loaded_is_admitted",
        "With nobody running and no frame or send in flight, each request that waits loaded can be"
        " admitted, whatever stands before it and whatever else is being loaded.",
        (u, e),
        all_of(
            landed[u],
            nobody_runs(),
            is_open[step],
            preempted[step] == 0,
            no_frame_in_flight(),
            total(g, pinned[g]) == 0,
        ),
        rows=("admit_landed", "drain"),
        fixed={"admit_landed": {"r": u}},
        uses=(
            *ROOM,
            "claim_covers_tokens",
            "table_is_within_its_claim",
            "claims_fit",
            "claims_leave_room",
            "only_loaded_claim",
            "landed_has_its_kv",
            "only_running_holds",
        ),
        property="V3",
    ),
    Progress(
        "deferring_step_serves_decodes",
        "A fresh step that leaves prefills for later can still serve a request that decodes, once"
        " no frame is in flight.",
        (u, e),
        all_of(
            status[u] == RUNNING,
            decoding[u],
            is_open[step],
            no_frame_in_flight(),
            nothing_is_transferred(),
            is_deferring[step],
            budget_left[step] == TOKEN_BUDGET,
            preempted[step] == 0,
            total(x, items_held[x]) == 0,
            *vacant(e),
        ),
        rows=(
            "grow",
            "schedule",
            "finish_stopped",
            "finish_length",
            "preempt",
        ),
        uses=ENOUGH_TO_RUN,
        property="V10",
    ),
    Progress(
        "entries_can_be_let_go",
        "A request that uses an entry of the encoder cache can always let go of it.",
        (u, i),
        item_table[u, i] >= 1,
        rows=("let_go",),
        uses=(),
        property="N4",
    ),
    Progress(
        "full_encoder_cache_makes_room",
        "A full encoder cache has an entry that can be evicted, or one that its user can let go.",
        (),
        all_of(
            ENCODER_SLOTS >= 1,
            total(j, choose(users[j] >= 1, size[j], 0))
            + total(j, choose(users[j] == 0, size[j], 0))
            == ENCODER_SLOTS,
        ),
        rows=("evict", "let_go"),
        uses=("users_are_exact",),
        property="N4",
    ),
    Progress(
        "parked_request_has_an_exit",
        "A parked request can be sent on its way again, or aborted, whatever else is the case.",
        (u, e),
        all_of(parked(status[u]), *vacant(e)),
        rows=("abort",),
        uses=("only_running_uses_entries", "only_running_is_scheduled", "scheduled_minimum"),
        property="V7",
    ),
    Progress(
        "request_can_be_aborted",
        "A request that runs, waits or is loaded can be aborted as soon as it has left the step.",
        (u, e),
        all_of(
            live(status[u]),
            scheduled[u] == 0,
            items_held[u] == 0,
            *vacant(e),
        ),
        rows=("abort",),
        uses=(),
        property="V7",
    ),
    Progress(
        "closed_step_moves_on",
        "Between passes a step can be opened.",
        (u,),
        all_of(live(status[u]), no(is_open[step])),
        rows=("begin",),
        uses=(),
    ),
    Progress(
        "frame_in_flight_comes_to_an_end",
        "A frame in flight can come back, be accounted for, and be over, whatever else happens.",
        (),
        processed[step] + count_if(is_open[step]) < issued[step],
        rows=ACCOUNTING,
        uses=("frames_in_flight", "sample_is_in_flight", "sample_is_wanted"),
        property="V8",
    ),
    Progress(
        "load_comes_to_an_end",
        "A transfer can end, and its request then waits to be admitted.",
        (u, e),
        all_of(
            status[u] == WAITING_FOR_REMOTE_KVS,
            any_of(loading[u], remote[u] == 0),
            *vacant(e),
        ),
        rows=("land", "start_over", "start_over_preempted"),
        uses=("preemptions_minimum",),
        property="V7",
    ),
    Progress(
        "pin_comes_to_an_end",
        "A transfer that may touch blocks behind a fence can end, whatever else happens.",
        (e,),
        pinned[e] >= 1,
        rows=("unpin",),
        uses=(),
        property="V7",
    ),
    Progress(
        "fence_comes_to_an_end",
        "The blocks behind a fence can be given back once no frame and no transfer touches them.",
        (e, b),
        all_of(fence_table[e, b] >= 1, no_frame_in_flight(), pinned[e] == 0),
        rows=("drain",),
        uses=("frames_in_flight", "fences_are_numbered"),
        property="V8",
    ),
    Progress(
        "finished_request_leaves",
        "A finished request can leave its row, once the frames that touch it are over.",
        (u,),
        all_of(finished(status[u]), no_frame_in_flight()),
        rows=("retire",),
        uses=("frames_are_numbered",),
        property="L5",
    ),
)
