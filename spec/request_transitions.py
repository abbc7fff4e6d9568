"""The rows that move a request through its life."""

from kvproof.spec.expected import expected
from kvproof.spec.expression import (
    Assignment,
    FlagParameter,
    Formula,
    Index,
    NumberParameter,
    all_of,
    any_of,
    choose,
    count_if,
    every,
    no,
)
from kvproof.spec.roles import (
    BLOCK_SIZE,
    LOOKAHEAD,
    MAX_DRAFTS,
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
from kvproof.spec.service_order import does_not_go_before, goes_before
from kvproof.spec.statuses import (
    ABSENT,
    FINISHED,
    FINISHED_ABORTED,
    FINISHED_LENGTH,
    FINISHED_STOPPED,
    LIVE,
    PARKED,
    PREEMPTED,
    RUNNING,
    WAITING,
)
from kvproof.spec.variables import (
    admissions,
    arrival,
    block_table,
    ceiling,
    claimed,
    claims,
    computed,
    credit,
    decoding,
    drafts,
    fence_table,
    fenced,
    free,
    held,
    in_turn,
    is_open,
    issued,
    items_held,
    known,
    landed,
    last_frame,
    limit,
    load_failed,
    loaded,
    loading,
    needed,
    passed,
    pinned,
    preempted,
    preemptions,
    priority,
    processed,
    remote,
    returned,
    running,
    scheduled,
    spoiled,
    stale,
    status,
    stopped,
    turn,
    until,
    waiting,
)

r = request.index("r")
victim = request.index("victim")
needy = request.index("needy")
e = fence.index("e")
x = block.index("x")

prompt = NumberParameter("prompt", "tokens of the prompt")
most = NumberParameter("most", "tokens that may be computed at most")
urgency = NumberParameter("urgency", "its priority; the least is served first")
time = NumberParameter("time", "when it arrived, in any unit that keeps the order")
shared = NumberParameter("shared", "hits that other requests hold, which the request will share")
count = NumberParameter("count", "tokens sampled, accepted drafts among them")
draft_count = NumberParameter("draft_count", "draft tokens")
max_tokens = NumberParameter("max_tokens", "tokens to sample at most")
wanted = NumberParameter("wanted", "tokens the needy request is to get in this step")
stop = FlagParameter("stop", "the sample ends the request")


def move_table_to_fence(owner: Index) -> tuple[Assignment, ...]:
    """Return the one way in which blocks leave a table: all of them, behind a fence.

    If a frame in flight touches them, they wait for the last frame that has been dispatched, so
    that fences end in the order in which they were closed (vLLM Scheduler._free_request_blocks).
    """
    return (
        every(x, fence_table[e, x].becomes(block_table[owner, x])),
        every(x, block_table[owner, x].becomes(0)),
        fenced[e].becomes(held[owner]),
        held[owner].becomes(0),
        until[e].becomes(
            choose(
                last_frame[owner] <= returned[step],
                last_frame[owner],
                issued[step] - count_if(is_open[step]),
            )
        ),
    )


def forget_attempt(owner: Index) -> tuple[Assignment, ...]:
    """Return what a request that gave up its table has computed, drafted and decoded: nothing."""
    return (
        computed[owner].becomes(0),
        drafts[owner].becomes(0),
        passed[owner].becomes(0),
        decoding[owner].becomes(value=False),
    )


def give_up_claim(owner: Index) -> tuple[Assignment, ...]:
    """Return what a request does that needs no blocks kept for it any more."""
    return (
        claims[pool].becomes(claims[pool] - claimed[owner]),
        claimed[owner].becomes(0),
    )


def end_of_load(owner: Index) -> tuple[Assignment, ...]:
    """Return what it means for a load that its request ends: the fence waits in its place."""
    return (
        *give_up_claim(owner),
        pinned[e].becomes(count_if(loading[owner])),
        loading[owner].becomes(value=False),
        remote[owner].becomes(0),
    )


def vacant(fence: Index) -> tuple[Formula, ...]:
    """Say that nothing waits behind a fence, so that it can take a table."""
    return fenced[fence] == 0, pinned[fence] == 0


def _exceeds_the_pool(needy: Index) -> tuple[Formula, Formula]:
    """Say that a running request cannot have the wanted tokens, even with every free block."""
    return (
        status[needy] == RUNNING,
        (held[needy] + free[pool]) * BLOCK_SIZE < computed[needy] + wanted + LOOKAHEAD,
    )


def _lacks_blocks(needy: Index) -> tuple[Formula, ...]:
    """Say the same, and that they are tokens which it has, drafts or will have been given."""
    runs, exceeds = _exceeds_the_pool(needy)
    return runs, computed[needy] + wanted <= expected(needy) + drafts[needy], exceeds


ENTER_THE_QUEUE = (
    known[r].becomes(prompt),
    limit[r].becomes(prompt + max_tokens),
    ceiling[r].becomes(most),
    waiting[pool].becomes(waiting[pool] + 1),
)

ARRIVE = Transition(
    name="arrive",
    doc="A request takes a vacant row; one that could not fit an empty pool is refused.",
    rule="vLLM Scheduler.add_request; vllm#39734",
    parameters=(r, prompt, max_tokens, most),
    subject=r,
    source=(ABSENT,),
    target=WAITING,
    guard=(
        prompt >= 1,
        max_tokens >= 1,
        prompt + max_tokens - 1 <= most,
        most + LOOKAHEAD <= TOTAL_BLOCKS * BLOCK_SIZE,
    ),
    effect=ENTER_THE_QUEUE,
    environment=True,
)

ARRIVE_UNCHECKED = Transition(
    name="arrive_unchecked",
    doc="A request takes a vacant row, even one that could never fit.",
    rule="vLLM Scheduler.add_request; vllm#39734",
    parameters=(r, prompt, max_tokens, most),
    subject=r,
    source=(ABSENT,),
    target=WAITING,
    guard=(
        prompt >= 1,
        max_tokens >= 1,
        prompt + max_tokens - 1 <= most,
    ),
    effect=ENTER_THE_QUEUE,
    environment=True,
    breaks=("fits_an_empty_pool",),
)

RANK = Transition(
    name="rank",
    doc="A request that waits is given its place in the order by priority and arrival.",
    rule="vLLM Request.__lt__",
    parameters=(r, urgency, time),
    subject=r,
    source=(WAITING,),
    effect=(priority[r].becomes(urgency), arrival[r].becomes(time)),
    environment=True,
)

START_TO_RUN = (
    running[pool].becomes(running[pool] + 1),
    waiting[pool].becomes(waiting[pool] - 1),
    admissions[step].becomes(admissions[step] + 1),
    turn[r].becomes(admissions[step] + 1),
)

RUN_WITH_HITS = (credit[step].becomes(credit[step] + shared), *START_TO_RUN)

ROOM_FOR_ALL_KNOWN = (
    no(landed[r]),
    is_open[step],
    preempted[step] == 0,
    running[pool] < MAX_RUNNING,
    shared >= 0,
    known[r] + LOOKAHEAD
    <= (free[pool] + shared - choose(running[pool] >= 1, WATERMARK, 0)) * BLOCK_SIZE,
)

ADMIT = Transition(
    name="admit",
    doc="A waiting request starts to run, if all of its known tokens fit and nobody waits loaded.",
    rule="vLLM Scheduler.schedule, waiting loop; vllm#37307; vllm#21809; vllm#45406; vllm#57841",
    parameters=(r, shared),
    subject=r,
    source=(WAITING, PREEMPTED),
    target=RUNNING,
    guard=(*ROOM_FOR_ALL_KNOWN, loaded[pool] == 0),
    effect=RUN_WITH_HITS,
)

ADMIT_PAST_LOADED = Transition(
    name="admit_past_loaded",
    doc="A waiting request starts to run, although requests that hold loaded blocks wait.",
    rule="vLLM Scheduler.schedule, waiting loop; vllm#45406; vllm#57841",
    parameters=(r, shared),
    subject=r,
    source=(WAITING, PREEMPTED),
    target=RUNNING,
    guard=ROOM_FOR_ALL_KNOWN,
    effect=RUN_WITH_HITS,
    breaks=("loaded_go_first",),
)

ADMIT_CHUNK = Transition(
    name="admit_chunk",
    doc="A waiting request starts to run if its first chunk fits, whatever comes after it.",
    rule="vLLM KVCacheManager.allocate_slots without full_sequence_must_fit; vllm#25538",
    parameters=(r, shared, wanted),
    subject=r,
    source=(WAITING, PREEMPTED),
    target=RUNNING,
    guard=(
        no(landed[r]),
        is_open[step],
        preempted[step] == 0,
        running[pool] < MAX_RUNNING,
        shared >= 0,
        wanted >= 1,
        wanted + LOOKAHEAD
        <= (free[pool] + shared - choose(running[pool] >= 1, WATERMARK, 0)) * BLOCK_SIZE,
    ),
    effect=RUN_WITH_HITS,
    breaks=("admission_fits", "admission_keeps_the_watermark", "loaded_go_first"),
)

PREEMPTION_IS_POSSIBLE = (
    held[victim] >= 1,
    scheduled[victim] == 0,
    known[victim] < limit[victim],
    no(stopped[victim]),
    items_held[victim] == 0,
    *vacant(e),
)


QUIET_AND_NEEDED = (
    *_lacks_blocks(needy),
    *PREEMPTION_IS_POSSIBLE,
    last_frame[victim] <= processed[step],
)


def _back_to_the_queue(need: tuple[Formula, ...]) -> tuple[Assignment, ...]:
    """Return what a preemption does; it counts as needed if there is the need for it."""
    return (
        *move_table_to_fence(victim),
        *forget_attempt(victim),
        load_failed[victim].becomes(value=False),
        preemptions[victim].becomes(preemptions[victim] + 1),
        running[pool].becomes(running[pool] - 1),
        waiting[pool].becomes(waiting[pool] + 1),
        preempted[step].becomes(preempted[step] + 1),
        needed[step].becomes(needed[step] + count_if(all_of(*need))),
    )


PREEMPT = Transition(
    name="preempt",
    doc="A running request gives up its table for one that lacks blocks and is served before it.",
    rule="vLLM Scheduler._preempt_request; vllm#49674",
    parameters=(victim, needy, wanted, e),
    subject=victim,
    source=(RUNNING,),
    target=PREEMPTED,
    guard=(*QUIET_AND_NEEDED, *does_not_go_before(victim, needy)),
    effect=(
        *_back_to_the_queue(_lacks_blocks(needy)),
        in_turn[step].becomes(in_turn[step] + count_if(no(goes_before(victim, needy)))),
    ),
)

PREEMPT_AT_WILL = Transition(
    name="preempt_at_will",
    doc="A running request is preempted for one that is served after it, as a policy may choose.",
    rule="vLLM Scheduler.schedule, preemption of the first of equals; vllm#54644",
    parameters=(victim, needy, wanted, e),
    subject=victim,
    source=(RUNNING,),
    target=PREEMPTED,
    guard=QUIET_AND_NEEDED,
    effect=_back_to_the_queue(_lacks_blocks(needy)),
    breaks=("preemption_is_in_turn",),
)

PREEMPT_IN_FLIGHT = Transition(
    name="preempt_in_flight",
    doc="A running request is preempted though a frame touches its table, or for a needless token.",
    rule="vLLM Scheduler._preempt_request; vllm#49674",
    parameters=(victim, needy, wanted, e),
    subject=victim,
    source=(RUNNING,),
    target=PREEMPTED,
    guard=(*_exceeds_the_pool(needy), *PREEMPTION_IS_POSSIBLE),
    effect=_back_to_the_queue(_exceeds_the_pool(needy)),
    breaks=(
        "preemption_is_quiet",
        "preemption_pays_at_once",
        "waiting_wants_no_sample",
        "preemption_is_in_turn",
    ),
)

PROPOSE = Transition(
    name="propose",
    doc="A request that decodes is given draft tokens, to be tried with its next token.",
    rule="vLLM Scheduler.update_draft_token_ids",
    parameters=(r, draft_count),
    subject=r,
    source=(RUNNING,),
    guard=(
        draft_count >= 0,
        draft_count <= MAX_DRAFTS,
        known[r] + draft_count <= ceiling[r],
        computed[r] + 1 == known[r],
        scheduled[r] == 0,
    ),
    effect=(drafts[r].becomes(draft_count),),
    batched=True,
    environment=True,
)

ACCEPT_ONE = Transition(
    name="accept_one",
    doc="The sampled token of a request becomes known, where nobody has draft tokens.",
    rule="vLLM Scheduler.update_from_output; AsyncScheduler._update_request_with_output",
    parameters=(r, stop),
    subject=r,
    source=(RUNNING,),
    guard=(
        MAX_DRAFTS == 0,
        processed[step] < returned[step],
        any_of(spoiled[step] <= processed[step], stale[r] <= processed[step]),
        computed[r] >= known[r],
    ),
    effect=(
        known[r].becomes(known[r] + 1),
        decoding[r].becomes(value=True),
        stopped[r].becomes(stop),
    ),
    batched=True,
    environment=True,
)

ACCEPT = Transition(
    name="accept",
    doc="Sampled tokens become known: accepted drafts and one more; rejected ones are forgotten.",
    rule="vLLM Scheduler.update_from_output; Scheduler._update_request_with_output",
    parameters=(r, count, stop),
    subject=r,
    source=(RUNNING,),
    guard=(
        MAX_DRAFTS >= 1,
        last_frame[r] <= returned[step],
        count >= 1,
        count <= computed[r] - known[r] + 1,
        known[r] + count <= limit[r],
    ),
    effect=(
        computed[r].becomes(known[r] + count - 1),
        known[r].becomes(known[r] + count),
        decoding[r].becomes(value=True),
        stopped[r].becomes(stop),
    ),
    batched=True,
    environment=True,
)


def _brought_too_late() -> tuple[Formula, ...]:
    """Say that the frame that has come back is the last one that ran a preempted request."""
    return (processed[step] < returned[step], last_frame[r] == returned[step])


ACCEPT_LATE = Transition(
    name="accept_late",
    doc="A sample comes for a request that was preempted while a frame was to bring it.",
    rule="vLLM AsyncScheduler._update_request_with_output; vllm#48245",
    parameters=(r,),
    subject=r,
    source=(PREEMPTED,),
    guard=(no(landed[r]), *_brought_too_late(), known[r] + 1 < limit[r]),
    effect=(known[r].becomes(known[r] + 1),),
    environment=True,
)

FINISH_STOPPED_LATE = Transition(
    name="finish_stopped_late",
    doc="A stop token comes for a preempted request, which ends without its table.",
    rule="vLLM Scheduler.update_from_output, stopped_preempted_reqs",
    parameters=(r,),
    subject=r,
    source=(PREEMPTED,),
    target=FINISHED_STOPPED,
    guard=(no(landed[r]), *_brought_too_late()),
    effect=(
        known[r].becomes(known[r] + 1),
        stopped[r].becomes(value=True),
        waiting[pool].becomes(waiting[pool] - 1),
    ),
    environment=True,
    breaks=("legal_edges",),
)

FINISH_LENGTH_LATE = Transition(
    name="finish_length_late",
    doc="The last token comes for a preempted request, which ends without its table.",
    rule="vLLM Scheduler.update_from_output, stopped_preempted_reqs",
    parameters=(r,),
    subject=r,
    source=(PREEMPTED,),
    target=FINISHED_LENGTH,
    guard=(no(landed[r]), *_brought_too_late(), known[r] + 1 == limit[r]),
    effect=(
        known[r].becomes(known[r] + 1),
        waiting[pool].becomes(waiting[pool] - 1),
    ),
    environment=True,
    breaks=("legal_edges",),
)

FINISH_STOPPED = Transition(
    name="finish_stopped",
    doc="A request whose last sample was a stop token ends and gives up its table.",
    rule="vLLM check_stop; Scheduler._free_request",
    parameters=(r, e),
    subject=r,
    source=(RUNNING,),
    target=FINISHED_STOPPED,
    guard=(stopped[r], scheduled[r] == 0, items_held[r] == 0, *vacant(e)),
    effect=(*move_table_to_fence(r), running[pool].becomes(running[pool] - 1)),
)

FINISH_LENGTH = Transition(
    name="finish_length",
    doc="A request that has reached its limit without a stop token ends and gives up its table.",
    rule="vLLM check_stop; Scheduler._free_request",
    parameters=(r, e),
    subject=r,
    source=(RUNNING,),
    target=FINISHED_LENGTH,
    guard=(
        known[r] == limit[r],
        no(stopped[r]),
        items_held[r] == 0,
        *vacant(e),
    ),
    effect=(*move_table_to_fence(r), running[pool].becomes(running[pool] - 1)),
)

ABORT = Transition(
    name="abort",
    doc="A caller ends a request, whatever it is doing; what it held goes behind a fence.",
    rule="vLLM Scheduler.finish_requests; vllm#32255",
    parameters=(r, e),
    subject=r,
    source=(*LIVE, *PARKED),
    target=FINISHED_ABORTED,
    guard=(scheduled[r] == 0, items_held[r] == 0, *vacant(e)),
    effect=(
        *move_table_to_fence(r),
        *end_of_load(r),
        loaded[pool].becomes(loaded[pool] - count_if(landed[r])),
        landed[r].becomes(value=False),
        running[pool].becomes(running[pool] - count_if(status[r] == RUNNING)),
        waiting[pool].becomes(waiting[pool] - count_if(status[r].is_in(WAITING, PREEMPTED))),
    ),
    environment=True,
)

RETIRE = Transition(
    name="retire",
    doc="A finished request that no frame in flight brings anything leaves its row vacant.",
    rule="vLLM Scheduler._free_blocks; vllm#15326; vllm#6586",
    parameters=(r,),
    subject=r,
    source=FINISHED,
    target=ABSENT,
    guard=(last_frame[r] <= processed[step],),
    effect=(
        known[r].becomes(0),
        limit[r].becomes(0),
        computed[r].becomes(0),
        ceiling[r].becomes(0),
        drafts[r].becomes(0),
        passed[r].becomes(0),
        decoding[r].becomes(value=False),
        stopped[r].becomes(value=False),
        stale[r].becomes(0),
        preemptions[r].becomes(0),
        load_failed[r].becomes(value=False),
        priority[r].becomes(0),
        arrival[r].becomes(0),
        turn[r].becomes(0),
    ),
)

TRANSITIONS = (
    ARRIVE,
    ARRIVE_UNCHECKED,
    RANK,
    ADMIT,
    ADMIT_PAST_LOADED,
    ADMIT_CHUNK,
    PREEMPT,
    PREEMPT_AT_WILL,
    PREEMPT_IN_FLIGHT,
    PROPOSE,
    ACCEPT_ONE,
    ACCEPT,
    ACCEPT_LATE,
    FINISH_STOPPED_LATE,
    FINISH_LENGTH_LATE,
    FINISH_STOPPED,
    FINISH_LENGTH,
    ABORT,
    RETIRE,
)
