"""The rows of a step: it is opened, filled within its budget, dispatched and processed."""

from kvproof.spec.expression import (
    FlagParameter,
    NumberParameter,
    all_of,
    any_of,
    choose,
    count_if,
    every,
    no,
    total,
)
from kvproof.spec.roles import (
    BLOCK_SIZE,
    ENCODER_BUDGET,
    LOOKAHEAD,
    TOKEN_BUDGET,
    block,
    pool,
    request,
    step,
)
from kvproof.spec.rows import Transition
from kvproof.spec.statuses import RUNNING
from kvproof.spec.variables import (
    block_table,
    budget_left,
    capacity_bound,
    computed,
    credit,
    decoding,
    drafts,
    encoder_budget_left,
    held,
    is_deferring,
    is_open,
    issued,
    known,
    last_frame,
    limit,
    needed,
    owed,
    preempted,
    processed,
    scheduled,
    status,
    stopped,
    touched,
    waiting,
)

r = request.index("r")
x = request.index("x")
y = block.index("y")
throttled = FlagParameter("throttled", "prefills are to be left to a later step, if others run")
tokens = NumberParameter("tokens", "tokens to schedule")

BEGIN = Transition(
    name="begin",
    doc="A step is opened with its whole budget, once every earlier frame has been processed.",
    rule="vLLM Scheduler.schedule",
    parameters=(throttled,),
    guard=(issued[step] == processed[step],),
    effect=(
        is_deferring[step].becomes(
            all_of(
                throttled,
                no(capacity_bound[step]),
                total(x, all_of(status[x] == RUNNING, decoding[x])) >= 1,
            )
        ),
        is_open[step].becomes(value=True),
        issued[step].becomes(issued[step] + 1),
        budget_left[step].becomes(TOKEN_BUDGET),
        encoder_budget_left[step].becomes(ENCODER_BUDGET),
        preempted[step].becomes(0),
        needed[step].becomes(0),
    ),
)

SCHEDULE = Transition(
    name="schedule",
    doc="A running request gets tokens of the open step, all of them covered by its table.",
    rule="vLLM Scheduler.schedule",
    parameters=(r, tokens),
    subject=r,
    source=(RUNNING,),
    guard=(
        is_open[step],
        scheduled[r] == 0,
        tokens >= 1,
        tokens <= budget_left[step],
        computed[r] + tokens <= known[r] + drafts[r],
        computed[r] + tokens + LOOKAHEAD <= held[r] * BLOCK_SIZE,
        any_of(no(is_deferring[step]), decoding[r], computed[r] + 1 >= known[r]),
        known[r] < limit[r],
        no(stopped[r]),
    ),
    effect=(
        scheduled[r].becomes(tokens),
        budget_left[step].becomes(budget_left[step] - tokens),
    ),
    batched=True,
)

UNSCHEDULE = Transition(
    name="unschedule",
    doc="A request leaves the open step as if it had never been scheduled in it.",
    rule="vLLM Scheduler.schedule, preemption of a scheduled victim; vllm#23713",
    parameters=(r,),
    subject=r,
    source=(RUNNING,),
    guard=(scheduled[r] >= 1,),
    effect=(
        budget_left[step].becomes(budget_left[step] + scheduled[r]),
        scheduled[r].becomes(0),
    ),
    undoes="schedule",
)

DISPATCH = Transition(
    name="dispatch",
    doc="The open step becomes a frame: what it scheduled counts as computed, samples are owed.",
    rule="vLLM Scheduler._update_after_schedule",
    guard=(is_open[step], credit[step] == 0),
    effect=(
        capacity_bound[step].becomes(
            any_of(
                all_of(no(is_deferring[step]), preempted[step] == 0, waiting[pool] >= 1),
                all_of(any_of(is_deferring[step], preempted[step] >= 1), capacity_bound[step]),
            )
        ),
        is_open[step].becomes(value=False),
        every(
            x,
            owed[x].becomes(
                owed[x]
                + count_if(all_of(scheduled[x] >= 1, computed[x] + scheduled[x] >= known[x]))
            ),
        ),
        every(x, computed[x].becomes(computed[x] + scheduled[x])),
        every(x, last_frame[x].becomes(choose(scheduled[x] >= 1, issued[step], last_frame[x]))),
        every(x, scheduled[x].becomes(0)),
        every(
            x,
            y,
            touched[x, y].becomes(
                choose(
                    all_of(scheduled[x] >= 1, block_table[x, y] >= 1), issued[step], touched[x, y]
                )
            ),
        ),
    ),
)

PROCESS = Transition(
    name="process",
    doc="A dispatched frame is over: every sample it owed has been accepted or discarded.",
    rule="vLLM Scheduler.update_from_output; fence of vllm#45357",
    guard=(
        no(is_open[step]),
        processed[step] < issued[step],
        total(x, owed[x]) == 0,
    ),
    effect=(processed[step].becomes(processed[step] + 1),),
    environment=True,
)

TRANSITIONS = (BEGIN, SCHEDULE, UNSCHEDULE, DISPATCH, PROCESS)
