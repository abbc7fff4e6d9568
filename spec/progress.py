"""Why the scheduler goes on: what the configuration must satisfy, what falls, what is enabled."""

from kvproof.spec.expression import all_of, choose, count_if, no, total
from kvproof.spec.roles import TOKEN_BUDGET, fence, pool, request, step
from kvproof.spec.rows import Measure, Progress
from kvproof.spec.statuses import finished, live
from kvproof.spec.variables import (
    budget_left,
    fenced,
    free,
    is_open,
    issued,
    known,
    limit,
    owed,
    preempted,
    processed,
    running,
    scheduled,
    status,
    waiting,
)

u = request.index("u")
x = request.index("x")
e = fence.index("e")
f = fence.index("f")

MEASURES = (
    Measure(
        "tokens_to_sample",
        "Tokens that live requests may still sample; only an arrival adds to them.",
        total(x, choose(live(status[x]), limit[x] - known[x], 0)),
        lowered_by=("accept",),
        raised_by=("arrive",),
    ),
    Measure(
        "samples_owed",
        "Samples that dispatched frames owe; each is accepted or discarded once.",
        total(x, owed[x]),
        lowered_by=("accept", "discard"),
        raised_by=("dispatch",),
        property="V7",
    ),
    Measure(
        "budget",
        "Tokens that the open step may still schedule.",
        budget_left[step],
        lowered_by=("schedule",),
        raised_by=("begin", "unschedule"),
        property="N5",
    ),
    Measure(
        "requests_in_step",
        "Requests that the open step has scheduled.",
        total(x, scheduled[x] >= 1),
        lowered_by=("unschedule",),
        raised_by=("schedule",),
        property="N3",
    ),
    Measure(
        "open_steps",
        "Steps that are open and not dispatched.",
        count_if(is_open[step]),
        lowered_by=("dispatch",),
        raised_by=("begin",),
    ),
    Measure(
        "frames_in_flight_count",
        "Frames that have been opened and not processed.",
        issued[step] - processed[step],
        lowered_by=("process",),
        raised_by=("begin",),
        property="N6",
    ),
    Measure(
        "free_blocks",
        "Free blocks; a table that grows takes one.",
        free[pool],
        lowered_by=("grow",),
        raised_by=("drain",),
    ),
    Measure(
        "fenced_blocks",
        "Blocks behind fences; each drains once.",
        total(f, fenced[f]),
        lowered_by=("drain",),
        raised_by=("preempt", "finish_stopped", "finish_length", "abort"),
        property="S6",
    ),
    Measure(
        "requests_waiting",
        "Requests that wait for admission.",
        waiting[pool],
        lowered_by=("admit",),
        raised_by=("arrive", "preempt"),
    ),
    Measure(
        "requests_running",
        "Running requests; a step that preempts gets them back only after it has ended.",
        running[pool],
        lowered_by=("preempt", "finish_stopped", "finish_length"),
        raised_by=("admit",),
        property="V6",
    ),
)

PROGRESS = (
    Progress(
        "fresh_step_does_something",
        "A fresh step with an unfinished request can admit, grow, schedule, drain, finish or"
        " preempt.",
        (u, e),
        all_of(
            live(status[u]),
            is_open[step],
            budget_left[step] == TOKEN_BUDGET,
            preempted[step] == 0,
            fenced[e] == 0,
        ),
        rows=("admit", "grow", "schedule", "drain", "finish_stopped", "finish_length", "preempt"),
    ),
    Progress(
        "closed_step_moves_on",
        "Between passes a step can be opened, or the frame in flight can be accounted for.",
        (u,),
        all_of(live(status[u]), no(is_open[step])),
        rows=("begin", "accept", "discard", "process"),
    ),
    Progress(
        "finished_request_leaves",
        "A finished request can leave its row, once what it is owed has been discarded.",
        (u,),
        finished(status[u]),
        rows=("retire", "discard"),
        property="L5",
    ),
)
