"""The rows of a request that vLLM 0.25.1 owes a sample which no frame will bring.

When a frame ran on what a synchronous load did not bring, its sample is dropped, but the count of
output placeholders keeps it, and the next frame, in flight on the same KV, is accepted. Since then
the request is scheduled one token further than its samples can reach. No safe profile does this: a
request whose load failed starts over, and none of its frames in flight counts.
"""

from kvproof.spec.block_transitions import TAKE_ONE
from kvproof.spec.expression import FlagParameter, NumberParameter, any_of, no
from kvproof.spec.roles import BLOCK_SIZE, LOOKAHEAD, MAX_DRAFTS, block, request, step
from kvproof.spec.rows import Transition
from kvproof.spec.statuses import RUNNING
from kvproof.spec.variables import (
    budget_left,
    computed,
    decoding,
    held,
    is_deferring,
    is_open,
    known,
    limit,
    processed,
    queued,
    returned,
    scheduled,
    stale,
    stopped,
)

r = request.index("r")
b = block.index("b")
tokens = NumberParameter("tokens", "tokens to schedule")
stop = FlagParameter("stop", "the sample ends the request")

SCHEDULE_MISCOUNTED = Transition(
    name="schedule_miscounted",
    doc="A running request gets tokens beyond all that frames in flight will let it know.",
    rule="vLLM Scheduler.schedule, num_output_placeholders; Scheduler._handle_invalid_blocks",
    parameters=(r, tokens),
    subject=r,
    source=(RUNNING,),
    guard=(
        is_open[step],
        scheduled[r] == 0,
        tokens >= 1,
        tokens <= budget_left[step],
        computed[r] + tokens + LOOKAHEAD <= held[r] * BLOCK_SIZE,
        any_of(no(is_deferring[step]), decoding[r], computed[r] + 1 >= known[r]),
        no(stopped[r]),
    ),
    effect=(
        scheduled[r].becomes(tokens),
        budget_left[step].becomes(budget_left[step] - tokens),
    ),
    breaks=("tokens_in_order", "scheduled_is_wanted"),
)

GROW_MISCOUNTED = Transition(
    name="grow_miscounted",
    doc="A running request takes one free block for a token that it will not come to know.",
    rule="vLLM KVCacheManager.allocate_slots; Scheduler._handle_invalid_blocks",
    parameters=(r, b),
    subject=r,
    source=(RUNNING,),
    guard=(queued[b],),
    effect=TAKE_ONE,
    breaks=("table_is_no_longer_than_needed",),
)

ACCEPT_MISCOUNTED = Transition(
    name="accept_miscounted",
    doc="A sample becomes known of a request that may be computing anew what came before it.",
    rule="vLLM AsyncScheduler._update_request_with_output; Scheduler._handle_invalid_blocks",
    parameters=(r, stop),
    subject=r,
    source=(RUNNING,),
    guard=(
        MAX_DRAFTS == 0,
        scheduled[r] == 0,
        processed[step] < returned[step],
        stale[r] <= processed[step],
        known[r] < limit[r],
    ),
    effect=(known[r].becomes(known[r] + 1), stopped[r].becomes(stop)),
    environment=True,
    breaks=("complete_has_its_table", "decoding_has_computed", "drafts_are_tried_once"),
)

PROCESS_MISCOUNTED = Transition(
    name="process_miscounted",
    doc="A frame is over, whoever still waits for a sample of it.",
    rule="vLLM Scheduler.update_from_output; Scheduler._handle_invalid_blocks",
    guard=(processed[step] < returned[step],),
    effect=(processed[step].becomes(processed[step] + 1),),
    environment=True,
    breaks=("sample_is_in_flight",),
)

TRANSITIONS = (SCHEDULE_MISCOUNTED, GROW_MISCOUNTED, ACCEPT_MISCOUNTED, PROCESS_MISCOUNTED)
