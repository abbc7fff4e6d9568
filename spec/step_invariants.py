"""What is always true of a step and its budget."""

from kvproof.spec.expression import all_of, count_if, implies, no, total
from kvproof.spec.roles import TOKEN_BUDGET, request, step
from kvproof.spec.rows import Invariant
from kvproof.spec.variables import budget_left, is_open, issued, processed, scheduled

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
        "frames_in_flight",
        "At most one frame is unprocessed, and the open step is it.",
        all_of(
            processed[step] + count_if(is_open[step]) <= issued[step],
            issued[step] <= processed[step] + 1,
        ),
        property="N6",
    ),
    Invariant(
        "closed_step_is_empty",
        "Between steps nothing is scheduled.",
        implies(no(is_open[step]), total(x, scheduled[x]) == 0),
        property="N5",
    ),
)
