"""The rows of a step: it is opened, filled within its budget, dispatched and processed."""

from kvproof.spec.expected import decodes, expected
from kvproof.spec.expression import (
    Assignment,
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
    MAX_DRAFTS,
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
    in_turn,
    is_deferring,
    is_open,
    issued,
    known,
    last_frame,
    limit,
    needed,
    preempted,
    processed,
    returned,
    scheduled,
    status,
    stopped,
    touched,
    undecided,
    waiting,
)

r = request.index("r")
x = request.index("x")
y = block.index("y")
throttled = FlagParameter("throttled", "prefills are to be left to a later step, if others run")
tokens = NumberParameter("tokens", "tokens to schedule")

BEGIN = Transition(
    name="begin",
    doc="A step is opened with its whole budget, however many frames are in flight.",
    rule="vLLM Scheduler.schedule",
    parameters=(throttled,),
    guard=(no(is_open[step]),),
    effect=(
        is_deferring[step].becomes(
            all_of(
                throttled,
                no(capacity_bound[step]),
                total(x, decodes(x)) >= 1,
            )
        ),
        is_open[step].becomes(value=True),
        issued[step].becomes(issued[step] + 1),
        budget_left[step].becomes(TOKEN_BUDGET),
        encoder_budget_left[step].becomes(ENCODER_BUDGET),
        preempted[step].becomes(0),
        needed[step].becomes(0),
        in_turn[step].becomes(0),
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
        computed[r] + tokens <= expected(r) + drafts[r],
        computed[r] + tokens + LOOKAHEAD <= held[r] * BLOCK_SIZE,
        any_of(no(is_deferring[step]), decoding[r], computed[r] + 1 >= known[r]),
        any_of(MAX_DRAFTS == 0, computed[r] < known[r]),
        expected(r) < limit[r],
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


def _backlog() -> tuple[Assignment, ...]:
    """Return how the end of a pass decides whether this rank is bound by capacity."""
    aligned = all_of(no(is_deferring[step]), preempted[step] == 0)
    return (
        capacity_bound[step].becomes(
            any_of(
                all_of(aligned, waiting[pool] > undecided[pool]),
                all_of(no(aligned), capacity_bound[step]),
            )
        ),
        is_open[step].becomes(value=False),
    )


DISPATCH = Transition(
    name="dispatch",
    doc="The open step becomes a frame in flight: what it scheduled counts as computed.",
    rule="vLLM Scheduler._update_after_schedule",
    guard=(is_open[step], credit[step] == 0),
    effect=(
        *_backlog(),
        every(x, computed[x].becomes(computed[x] + scheduled[x])),
        every(x, drafts[x].becomes(choose(scheduled[x] >= 1, 0, drafts[x]))),
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

WITHDRAW = Transition(
    name="withdraw",
    doc="An open step that has scheduled nobody is closed, and is no frame.",
    rule="vLLM Scheduler.schedule, fence of non-empty steps; vllm#45357",
    guard=(is_open[step], budget_left[step] == TOKEN_BUDGET, credit[step] == 0),
    effect=(*_backlog(), issued[step].becomes(issued[step] - 1)),
)

COME_BACK = Transition(
    name="come_back",
    doc="The outputs of the oldest frame in flight have come back: it touches no block any more.",
    rule="vLLM Scheduler.update_from_output; fence of vllm#45357",
    guard=(
        returned[step] == processed[step],
        returned[step] + count_if(is_open[step]) < issued[step],
    ),
    effect=(returned[step].becomes(returned[step] + 1),),
    environment=True,
)

PROCESS = Transition(
    name="process",
    doc="A frame is over: every sample it brought has been accepted, or belongs to nobody.",
    rule="vLLM Scheduler.update_from_output",
    guard=(
        processed[step] < returned[step],
        total(
            x,
            all_of(
                status[x] == RUNNING,
                computed[x] >= known[x],
                last_frame[x] <= processed[step] + 1,
            ),
        )
        == 0,
    ),
    effect=(processed[step].becomes(processed[step] + 1),),
    environment=True,
)

TRANSITIONS = (BEGIN, SCHEDULE, UNSCHEDULE, DISPATCH, WITHDRAW, COME_BACK, PROCESS)
