"""The rows that move a request through its life."""

from kvproof.spec.expression import (
    Assignment,
    FlagParameter,
    Formula,
    Index,
    NumberParameter,
    all_of,
    count_if,
    every,
    no,
)
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
from kvproof.spec.rows import Transition
from kvproof.spec.statuses import (
    ABSENT,
    FINISHED,
    FINISHED_ABORTED,
    FINISHED_LENGTH,
    FINISHED_STOPPED,
    LIVE,
    PREEMPTED,
    RUNNING,
    WAITING,
)
from kvproof.spec.variables import (
    block_table,
    computed,
    fence_table,
    fenced,
    free,
    held,
    known,
    last_frame,
    limit,
    needed,
    owed,
    preempted,
    preemptions,
    processed,
    running,
    scheduled,
    status,
    stopped,
    until,
    waiting,
)

r = request.index("r")
victim = request.index("victim")
needy = request.index("needy")
e = fence.index("e")
x = block.index("x")

prompt = NumberParameter("prompt", "tokens of the prompt")
max_tokens = NumberParameter("max_tokens", "tokens to sample at most")
wanted = NumberParameter("wanted", "tokens the needy request is to get in this step")
stop = FlagParameter("stop", "the sample ends the request")


def move_table_to_fence(owner: Index) -> tuple[Assignment, ...]:
    """Return the one way in which blocks leave a table: all of them, behind a fence."""
    return (
        every(x, fence_table[e, x].becomes(block_table[owner, x])),
        every(x, block_table[owner, x].becomes(0)),
        fenced[e].becomes(held[owner]),
        held[owner].becomes(0),
        until[e].becomes(last_frame[owner]),
    )


def _lacks_blocks(needy: Index) -> tuple[Formula, ...]:
    """Say that a running request cannot have the wanted tokens, even with every free block."""
    return (
        status[needy] == RUNNING,
        computed[needy] + wanted <= known[needy],
        (held[needy] + free[pool]) * BLOCK_SIZE < computed[needy] + wanted,
    )


ARRIVE = Transition(
    name="arrive",
    doc="A request takes a vacant row; one that could not fit an empty pool is refused.",
    rule="vLLM Scheduler.add_request; vllm#39734",
    parameters=(r, prompt, max_tokens),
    subject=r,
    source=(ABSENT,),
    target=WAITING,
    guard=(
        prompt >= 1,
        max_tokens >= 1,
        prompt + max_tokens - 1 <= TOTAL_BLOCKS * BLOCK_SIZE,
    ),
    effect=(
        known[r].becomes(prompt),
        limit[r].becomes(prompt + max_tokens),
        waiting[pool].becomes(waiting[pool] + 1),
    ),
    environment=True,
)

ADMIT = Transition(
    name="admit",
    doc="A waiting request starts to run, if all of its known tokens fit into the free blocks.",
    rule="vLLM Scheduler.schedule, waiting loop; vllm#37307; vllm#25538",
    parameters=(r,),
    subject=r,
    source=(WAITING, PREEMPTED),
    target=RUNNING,
    guard=(
        preempted[step] == 0,
        running[pool] < MAX_RUNNING,
        known[r] <= free[pool] * BLOCK_SIZE,
    ),
    effect=(
        running[pool].becomes(running[pool] + 1),
        waiting[pool].becomes(waiting[pool] - 1),
    ),
)

PREEMPT = Transition(
    name="preempt",
    doc="A running request gives up its table because the free blocks cannot serve a needy one.",
    rule="vLLM Scheduler._preempt_request; vllm#49674",
    parameters=(victim, needy, wanted, e),
    subject=victim,
    source=(RUNNING,),
    target=PREEMPTED,
    guard=(
        *_lacks_blocks(needy),
        held[victim] >= 1,
        last_frame[victim] <= processed[step],
        scheduled[victim] == 0,
        known[victim] < limit[victim],
        no(stopped[victim]),
        fenced[e] == 0,
    ),
    effect=(
        *move_table_to_fence(victim),
        computed[victim].becomes(0),
        preemptions[victim].becomes(preemptions[victim] + 1),
        running[pool].becomes(running[pool] - 1),
        waiting[pool].becomes(waiting[pool] + 1),
        preempted[step].becomes(preempted[step] + 1),
        needed[step].becomes(needed[step] + count_if(all_of(*_lacks_blocks(needy)))),
    ),
)

ACCEPT = Transition(
    name="accept",
    doc="A sampled token that a processed frame owed becomes known.",
    rule="vLLM Scheduler._update_request_with_output",
    parameters=(r, stop),
    subject=r,
    source=(RUNNING,),
    guard=(owed[r] >= 1,),
    effect=(
        owed[r].becomes(owed[r] - 1),
        known[r].becomes(known[r] + 1),
        stopped[r].becomes(stop),
    ),
    batched=True,
    environment=True,
)

DISCARD = Transition(
    name="discard",
    doc="A sampled token for a request that has ended meanwhile is dropped.",
    rule="vLLM Scheduler.update_from_output; vllm#6586",
    parameters=(r,),
    subject=r,
    source=FINISHED,
    guard=(owed[r] >= 1,),
    effect=(owed[r].becomes(owed[r] - 1),),
    environment=True,
)

FINISH_STOPPED = Transition(
    name="finish_stopped",
    doc="A request whose last sample was a stop token ends and gives up its table.",
    rule="vLLM check_stop; Scheduler._free_request",
    parameters=(r, e),
    subject=r,
    source=(RUNNING,),
    target=FINISHED_STOPPED,
    guard=(stopped[r], fenced[e] == 0),
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
    guard=(known[r] == limit[r], no(stopped[r]), fenced[e] == 0),
    effect=(*move_table_to_fence(r), running[pool].becomes(running[pool] - 1)),
)

ABORT = Transition(
    name="abort",
    doc="A caller ends a request, whatever it is doing; what it held goes behind a fence.",
    rule="vLLM Scheduler.finish_requests; vllm#32255",
    parameters=(r, e),
    subject=r,
    source=LIVE,
    target=FINISHED_ABORTED,
    guard=(scheduled[r] == 0, fenced[e] == 0),
    effect=(
        *move_table_to_fence(r),
        running[pool].becomes(running[pool] - count_if(status[r] == RUNNING)),
        waiting[pool].becomes(waiting[pool] - count_if(status[r].is_in(WAITING, PREEMPTED))),
    ),
    environment=True,
)

RETIRE = Transition(
    name="retire",
    doc="A finished request that no frame owes anything leaves its row vacant.",
    rule="vLLM Scheduler._free_blocks; vllm#15326",
    parameters=(r,),
    subject=r,
    source=FINISHED,
    target=ABSENT,
    guard=(owed[r] == 0,),
    effect=(
        known[r].becomes(0),
        limit[r].becomes(0),
        computed[r].becomes(0),
        stopped[r].becomes(value=False),
        preemptions[r].becomes(0),
    ),
)

TRANSITIONS = (
    ARRIVE,
    ADMIT,
    PREEMPT,
    ACCEPT,
    DISCARD,
    FINISH_STOPPED,
    FINISH_LENGTH,
    ABORT,
    RETIRE,
)
