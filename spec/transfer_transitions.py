"""The rows of a transfer: blocks are filled from elsewhere, or read from there, until it has ended.

A transfer that was started ends once, in one of three ways: it lands, it fails at some block, or it
is lost, because it took too long or the peer is gone. Until then nobody else gets its blocks.
"""

from kvproof.spec.block_transitions import TAKE_ONE
from kvproof.spec.expression import NumberParameter, any_of, choose, count_if, larger, no
from kvproof.spec.request_transitions import (
    START_TO_RUN,
    end_of_load,
    forget_attempt,
    give_up_claim,
    move_table_to_fence,
    vacant,
)
from kvproof.spec.roles import (
    BLOCK_SIZE,
    LOOKAHEAD,
    MAX_RUNNING,
    TOTAL_BLOCKS,
    WATERMARK,
    block,
    fence,
    pool,
    request,
    step,
)
from kvproof.spec.rows import Transition
from kvproof.spec.service_order import runners_before
from kvproof.spec.statuses import (
    FINISHED_ERROR,
    PREEMPTED,
    RUNNING,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
)
from kvproof.spec.variables import (
    claimed,
    claims,
    computed,
    credit,
    decoding,
    fenced,
    free,
    held,
    is_open,
    items_held,
    known,
    landed,
    last_frame,
    limit,
    load_failed,
    loaded,
    loading,
    pinned,
    preempted,
    preemptions,
    queued,
    remote,
    running,
    scheduled,
    spoiled,
    stale,
    status,
    stopped,
    undecided,
    waiting,
)

r = request.index("r")
first = request.index("first")
b = block.index("b")
e = fence.index("e")

shared = NumberParameter("shared", "hits that other requests hold, which the request will share")
external = NumberParameter("external", "tokens that the transfer is to bring")
wanted = NumberParameter("wanted", "tokens that the table is to hold at the end of the load")
taken = NumberParameter("taken", "blocks that its table is to have at the end of the load")
claim = NumberParameter("claim", "blocks that all of its known tokens need")
reserved = NumberParameter("reserved", "free blocks that requests admitted before still need")
count = NumberParameter("count", "requests that wait for an answer")
valid = NumberParameter("valid", "tokens that the transfer has brought")

PARK_TO_BE_LOADED = (
    remote[r].becomes(external),
    claimed[r].becomes(claim),
    claims[pool].becomes(claims[pool] + claim),
    credit[step].becomes(credit[step] + shared),
    waiting[pool].becomes(waiting[pool] - 1),
)

AWAIT_LOAD = Transition(
    name="await_load",
    doc="A waiting request is parked to be loaded, if all loaded fit together beside the first.",
    rule="vLLM Scheduler.schedule, load_kv_async; vllm#45388; vllm#48433; vllm#30659",
    parameters=(r, shared, external, wanted, taken, claim, first),
    subject=r,
    source=(WAITING, PREEMPTED),
    target=WAITING_FOR_REMOTE_KVS,
    guard=(
        no(landed[r]),
        no(load_failed[r]),
        is_open[step],
        preempted[step] == 0,
        shared >= 0,
        external >= 1,
        external <= wanted,
        wanted <= taken * BLOCK_SIZE,
        taken + choose(running[pool] >= 1, WATERMARK, 0) <= free[pool] + shared,
        known[r] + LOOKAHEAD <= claim * BLOCK_SIZE,
        claims[pool] + claim <= TOTAL_BLOCKS,
        any_of(running[pool] == 0, status[first] == RUNNING),
        runners_before(first) == 0,
        any_of(
            running[pool] == 0,
            known[first] + LOOKAHEAD <= (held[first] + free[pool] + shared - taken) * BLOCK_SIZE,
        ),
    ),
    effect=PARK_TO_BE_LOADED,
)

AWAIT_LOAD_REGARDLESS = Transition(
    name="await_load_regardless",
    doc="A waiting request is parked to be loaded, whatever else is loaded or runs.",
    rule="vLLM Scheduler.schedule, load_kv_async; vllm#45388; vllm#48433",
    parameters=(r, shared, external, wanted, reserved, claim),
    subject=r,
    source=(WAITING, PREEMPTED),
    target=WAITING_FOR_REMOTE_KVS,
    guard=(
        no(landed[r]),
        is_open[step],
        preempted[step] == 0,
        shared >= 0,
        external >= 1,
        external <= wanted,
        reserved >= 0,
        wanted + choose(running[pool] >= 1, WATERMARK, 0) * BLOCK_SIZE
        <= (free[pool] + shared - reserved) * BLOCK_SIZE,
        known[r] + LOOKAHEAD <= claim * BLOCK_SIZE,
    ),
    effect=PARK_TO_BE_LOADED,
    breaks=("claims_fit", "failed_load_is_not_repeated", "load_leaves_room"),
)

GROW_FOR_LOAD = Transition(
    name="grow_for_load",
    doc="A request about to be loaded takes one free block for the tokens that come.",
    rule="vLLM KVCacheManager.allocate_slots, num_external_computed_tokens",
    parameters=(r, b),
    subject=r,
    source=(WAITING_FOR_REMOTE_KVS,),
    guard=(
        queued[b],
        held[r] * BLOCK_SIZE < computed[r] + remote[r],
        computed[r] + remote[r] <= known[r],
    ),
    effect=TAKE_ONE,
    batched=True,
)

START_LOAD = Transition(
    name="start_load",
    doc="The transfer into a table that has room for all it brings is started.",
    rule="vLLM KVConnectorBase_V1.update_state_after_alloc",
    parameters=(r,),
    subject=r,
    source=(WAITING_FOR_REMOTE_KVS,),
    guard=(
        remote[r] >= 1,
        computed[r] + remote[r] <= held[r] * BLOCK_SIZE,
        computed[r] + remote[r] <= known[r],
    ),
    effect=(loading[r].becomes(value=True),),
)

LAND = Transition(
    name="land",
    doc="A transfer has brought everything.",
    rule="vLLM Scheduler._update_from_kv_xfer_finished; vllm#56640",
    parameters=(r,),
    subject=r,
    source=(WAITING_FOR_REMOTE_KVS,),
    guard=(loading[r],),
    effect=(
        loading[r].becomes(value=False),
        computed[r].becomes(computed[r] + remote[r]),
        remote[r].becomes(0),
    ),
    environment=True,
)

FAIL_LOAD = Transition(
    name="fail_load",
    doc="A transfer has ended and brought only its first tokens.",
    rule="vLLM Scheduler._update_requests_with_invalid_blocks; vllm#50719",
    parameters=(r, valid),
    subject=r,
    source=(WAITING_FOR_REMOTE_KVS,),
    guard=(loading[r], valid >= 0, valid < remote[r]),
    effect=(
        loading[r].becomes(value=False),
        computed[r].becomes(computed[r] + valid),
        remote[r].becomes(0),
    ),
    environment=True,
)

LOSE_LOAD = Transition(
    name="lose_load",
    doc="A transfer took too long, or its peer is gone: it has ended and brought nothing.",
    rule="vllm#30659; vllm#50754",
    parameters=(r,),
    subject=r,
    source=(WAITING_FOR_REMOTE_KVS,),
    guard=(loading[r],),
    effect=(loading[r].becomes(value=False), remote[r].becomes(0)),
    environment=True,
)

WAIT_LOADED = (
    computed[r].becomes(choose(computed[r] == known[r], known[r] - 1, computed[r])),
    landed[r].becomes(value=True),
    loaded[pool].becomes(loaded[pool] + 1),
    waiting[pool].becomes(waiting[pool] + 1),
)

PROMOTE = Transition(
    name="promote",
    doc="A loaded request waits to be admitted with what it holds; one token is left to compute.",
    rule="vLLM Scheduler._update_waiting_for_remote_kv; vllm#45406; vllm#57841",
    parameters=(r,),
    subject=r,
    source=(WAITING_FOR_REMOTE_KVS,),
    target=WAITING,
    guard=(remote[r] == 0, computed[r] >= 1, known[r] >= 2, preemptions[r] == 0),
    effect=WAIT_LOADED,
)

PROMOTE_PREEMPTED = Transition(
    name="promote_preempted",
    doc="The same for a request that was preempted before.",
    rule="vLLM Scheduler._try_promote_blocked_waiting_request",
    parameters=(r,),
    subject=r,
    source=(WAITING_FOR_REMOTE_KVS,),
    target=PREEMPTED,
    guard=(remote[r] == 0, computed[r] >= 1, known[r] >= 2, preemptions[r] >= 1),
    effect=WAIT_LOADED,
)

WAIT_AS_NEW = (
    *move_table_to_fence(r),
    *give_up_claim(r),
    load_failed[r].becomes(value=True),
    computed[r].becomes(0),
    waiting[pool].becomes(waiting[pool] + 1),
)

START_OVER = Transition(
    name="start_over",
    doc="A request whose load brought nothing of use gives up its table and waits as if new.",
    rule="vLLM Scheduler._update_waiting_for_remote_kv",
    parameters=(r, e),
    subject=r,
    source=(WAITING_FOR_REMOTE_KVS,),
    target=WAITING,
    guard=(remote[r] == 0, preemptions[r] == 0, *vacant(e)),
    effect=WAIT_AS_NEW,
)

START_OVER_PREEMPTED = Transition(
    name="start_over_preempted",
    doc="The same for a request that was preempted before.",
    rule="vLLM Scheduler._try_promote_blocked_waiting_request",
    parameters=(r, e),
    subject=r,
    source=(WAITING_FOR_REMOTE_KVS,),
    target=PREEMPTED,
    guard=(remote[r] == 0, preemptions[r] >= 1, *vacant(e)),
    effect=WAIT_AS_NEW,
)

RUN_LOADED = (
    landed[r].becomes(value=False),
    loaded[pool].becomes(loaded[pool] - 1),
    *give_up_claim(r),
    *START_TO_RUN,
)

ADMIT_LANDED = Transition(
    name="admit_landed",
    doc="A loaded request starts to run, if what it does not hold yet fits into the free blocks.",
    rule="vLLM Scheduler.schedule, waiting loop; vllm#45388",
    parameters=(r,),
    subject=r,
    source=(WAITING, PREEMPTED),
    target=RUNNING,
    guard=(
        landed[r],
        is_open[step],
        preempted[step] == 0,
        running[pool] < MAX_RUNNING,
        known[r] + LOOKAHEAD <= (held[r] + free[pool]) * BLOCK_SIZE,
        any_of(
            running[pool] == 0,
            known[r] + LOOKAHEAD <= (held[r] + free[pool] - WATERMARK) * BLOCK_SIZE,
        ),
    ),
    effect=RUN_LOADED,
)

ADMIT_LANDED_CHUNK = Transition(
    name="admit_landed_chunk",
    doc="A loaded request starts to run, whatever comes after its next tokens.",
    rule="vLLM KVCacheManager.allocate_slots without full_sequence_must_fit; vllm#25538",
    parameters=(r,),
    subject=r,
    source=(WAITING, PREEMPTED),
    target=RUNNING,
    guard=(
        landed[r],
        is_open[step],
        preempted[step] == 0,
        running[pool] < MAX_RUNNING,
        (held[r] + free[pool]) * BLOCK_SIZE >= 1 + LOOKAHEAD,
    ),
    effect=RUN_LOADED,
    breaks=("admission_fits", "admission_keeps_the_watermark", "start_keeps_the_watermark"),
)

NOTE_UNDECIDED = Transition(
    name="note_undecided",
    doc="A pass has found so many waiting requests of which the connector knows nothing yet.",
    rule="vLLM Scheduler.schedule, skipped_waiting",
    parameters=(count,),
    guard=(count >= 0,),
    effect=(undecided[pool].becomes(count),),
)

CUT = Transition(
    name="cut",
    doc="A running request computes anew what a load did not bring, in blocks that stay published.",
    rule="vLLM Scheduler._update_requests_with_invalid_blocks",
    parameters=(r, valid),
    subject=r,
    source=(RUNNING,),
    guard=(
        scheduled[r] == 0,
        known[r] < limit[r],
        no(stopped[r]),
        valid >= 0,
        valid <= computed[r],
    ),
    effect=(
        computed[r].becomes(valid),
        decoding[r].becomes(any_of(decoding[r], computed[r] >= known[r])),
    ),
    environment=True,
    breaks=(
        "published_is_written",
        "released_is_behind",
        "table_is_no_longer_than_needed",
        "decoding_has_computed",
    ),
)

NOTE_PREFILL = Transition(
    name="note_prefill",
    doc="A request that computes anew what it had computed counts as decoding no more.",
    rule="vLLM Scheduler._update_after_schedule, is_prefill_chunk",
    parameters=(r,),
    subject=r,
    source=(RUNNING,),
    effect=(decoding[r].becomes(value=False),),
)

FILLS_THE_NEXT_SLOTS = (
    is_open[step],
    scheduled[r] == 0,
    external >= 1,
    computed[r] + external < known[r],
    computed[r] + external <= held[r] * BLOCK_SIZE,
)

LOAD_NOW = Transition(
    name="load_now",
    doc="A synchronous load fills the next slots of a running request before its step runs.",
    rule="vLLM Scheduler.schedule, num_external_computed_tokens",
    parameters=(r, external),
    subject=r,
    source=(RUNNING,),
    guard=(*FILLS_THE_NEXT_SLOTS, no(load_failed[r])),
    effect=(computed[r].becomes(computed[r] + external),),
)

LOAD_NOW_AGAIN = Transition(
    name="load_now_again",
    doc="A synchronous load is tried again by a request whose last load brought nothing of use.",
    rule="vLLM Scheduler.schedule, num_external_computed_tokens",
    parameters=(r, external),
    subject=r,
    source=(RUNNING,),
    guard=FILLS_THE_NEXT_SLOTS,
    effect=(computed[r].becomes(computed[r] + external),),
    breaks=("failed_load_is_computed",),
)

RESTART = Transition(
    name="restart",
    doc="A running request that was given KV that is not its own starts over.",
    rule="vLLM Scheduler._handle_invalid_blocks",
    parameters=(r, e),
    subject=r,
    source=(RUNNING,),
    target=WAITING,
    guard=(
        scheduled[r] == 0,
        items_held[r] == 0,
        known[r] < limit[r],
        no(stopped[r]),
        *vacant(e),
    ),
    effect=(
        *move_table_to_fence(r),
        *forget_attempt(r),
        load_failed[r].becomes(value=True),
        stale[r].becomes(last_frame[r]),
        spoiled[step].becomes(larger(spoiled[step], last_frame[r])),
        running[pool].becomes(running[pool] - 1),
        waiting[pool].becomes(waiting[pool] + 1),
    ),
    environment=True,
)

FINISH_ERROR = Transition(
    name="finish_error",
    doc="A request whose KV could not be loaded ends; its blocks wait for the end of the transfer.",
    rule="vLLM Scheduler.update_from_output, kv_load_failure_policy",
    parameters=(r, e),
    subject=r,
    source=(WAITING_FOR_REMOTE_KVS, RUNNING),
    target=FINISHED_ERROR,
    guard=(scheduled[r] == 0, items_held[r] == 0, *vacant(e)),
    effect=(
        *move_table_to_fence(r),
        *end_of_load(r),
        running[pool].becomes(running[pool] - count_if(status[r] == RUNNING)),
    ),
    environment=True,
)

PIN = Transition(
    name="pin",
    doc="The blocks of a request that has just ended are kept until they have been sent.",
    rule="vLLM Scheduler._connector_finished; vllm#43433",
    parameters=(e,),
    guard=(fenced[e] >= 1,),
    effect=(pinned[e].becomes(pinned[e] + 1),),
    environment=True,
)

UNPIN = Transition(
    name="unpin",
    doc="A transfer that might still touch the blocks behind a fence has ended, however it ended.",
    rule="vLLM Scheduler._update_from_kv_xfer_finished; vllm#32255",
    parameters=(e,),
    guard=(pinned[e] >= 1,),
    effect=(pinned[e].becomes(pinned[e] - 1),),
    environment=True,
)

TRANSITIONS = (
    AWAIT_LOAD,
    AWAIT_LOAD_REGARDLESS,
    GROW_FOR_LOAD,
    START_LOAD,
    LAND,
    FAIL_LOAD,
    LOSE_LOAD,
    PROMOTE,
    PROMOTE_PREEMPTED,
    START_OVER,
    START_OVER_PREEMPTED,
    ADMIT_LANDED,
    ADMIT_LANDED_CHUNK,
    LOAD_NOW,
    LOAD_NOW_AGAIN,
    NOTE_UNDECIDED,
    CUT,
    NOTE_PREFILL,
    RESTART,
    FINISH_ERROR,
    PIN,
    UNPIN,
)
