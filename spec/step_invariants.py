"""What is always true of a step and its budget."""

from kvproof.spec.expected import decodes
from kvproof.spec.expression import (
    all_of,
    any_of,
    before,
    count_if,
    held_before,
    implies,
    no,
    total,
)
from kvproof.spec.roles import TOKEN_BUDGET, pool, request, step
from kvproof.spec.rows import Invariant
from kvproof.spec.variables import (
    budget_left,
    capacity_bound,
    computed,
    credit,
    decoding,
    is_deferring,
    is_open,
    issued,
    known,
    preempted,
    processed,
    returned,
    scheduled,
    undecided,
    waiting,
)

r = request.index("r")
x = request.index("x")

INVARIANTS = (
    Invariant(
        "budget_is_spent_once",
        "What the open step has scheduled and what is left of its budget add up to the budget.",
        implies(
            is_open[step],
            budget_left[step] + total(x, scheduled[x]) == TOKEN_BUDGET,
        ),
        property="N5",
        rule="trt#13318",
    ),
    Invariant(
        "hits_counted_on_are_shared",
        "Between passes no admission is left that counted on a hit and did not share it.",
        implies(no(is_open[step]), credit[step] == 0),
        property="S8",
        rule="vllm#11565",
    ),
    Invariant(
        "deferring_step_has_no_prefill",
        "A step that defers prefills schedules decodes and single tokens only.",
        implies(
            all_of(is_open[step], is_deferring[step], scheduled[r] >= 1),
            any_of(decoding[r], computed[r] + 1 >= known[r]),
        ),
        property="V10",
        rule="vllm#44558",
    ),
    Invariant(
        "deferring_step_has_a_decode",
        "A step defers prefills only if it was throttled and some running request decodes.",
        implies(
            all_of(no(held_before(is_open[step])), is_open[step], is_deferring[step]),
            all_of(
                no(capacity_bound[step]),
                total(x, decodes(x)) >= 1,
            ),
        ),
        property="V10",
        rule="vllm#44558",
    ),
    Invariant(
        "backlog_is_seen",
        "A step that neither deferred nor preempted says whether requests are left waiting.",
        implies(
            all_of(held_before(is_open[step]), no(is_open[step])),
            any_of(
                all_of(
                    no(held_before(is_deferring[step])),
                    before(preempted[step]) == 0,
                    capacity_bound[step] == (waiting[pool] > undecided[pool]),
                ),
                all_of(
                    any_of(held_before(is_deferring[step]), before(preempted[step]) >= 1),
                    capacity_bound[step] == held_before(capacity_bound[step]),
                ),
            ),
        ),
        property="V10",
        rule="vllm#44558",
    ),
    Invariant(
        "frames_in_flight",
        "Frames come back and are processed one after the other, in the order of their dispatch.",
        all_of(
            processed[step] <= returned[step],
            returned[step] <= processed[step] + 1,
            returned[step] + count_if(is_open[step]) <= issued[step],
        ),
        property="N6",
        rule="vLLM Scheduler.update_from_output",
    ),
    Invariant(
        "closed_step_is_empty",
        "Between steps nothing is scheduled.",
        implies(no(is_open[step]), total(x, scheduled[x]) == 0),
        property="N5",
        rule="vllm#23713",
    ),
)
