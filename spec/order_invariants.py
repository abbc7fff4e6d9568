"""What is always true of the order of service: who runs longer goes first, and is not preempted.

So a request is overtaken only by more urgent ones, of which each overtakes it once.
"""

from kvproof.spec.expression import all_of, before, held_before, implies, no
from kvproof.spec.moves import starts_to_run
from kvproof.spec.roles import request, step
from kvproof.spec.rows import Invariant
from kvproof.spec.service_order import goes_before
from kvproof.spec.statuses import ABSENT, RUNNING, WAITING
from kvproof.spec.variables import admissions, arrival, in_turn, preempted, priority, status, turn

r = request.index("r")
s = request.index("s")

INVARIANTS = (
    Invariant(
        "turns_are_dealt",
        "Each admission has the next number, and no two have the same.",
        all_of(
            implies(
                starts_to_run(r),
                all_of(
                    turn[r] == admissions[step],
                    admissions[step] == before(admissions[step]) + 1,
                ),
            ),
            implies(
                all_of(held_before(status[r] == RUNNING), status[r] == RUNNING),
                turn[r] == before(turn[r]),
            ),
        ),
        property="V10",
        rule="vLLM Scheduler.schedule, running list",
    ),
    Invariant(
        "turns_are_past",
        "No request has the number of an admission that has not been made.",
        turn[r] <= admissions[step],
        property="V10",
        rule="vLLM Scheduler.schedule, running list",
    ),
    Invariant(
        "newcomers_go_last",
        "Who starts to run is served after all that run already and are as urgent.",
        implies(
            all_of(
                starts_to_run(r),
                held_before(status[s] == RUNNING),
                status[s] == RUNNING,
                priority[s] == priority[r],
                arrival[s] == arrival[r],
            ),
            goes_before(s, r),
        ),
        property="V10",
        rule="vllm#41951",
    ),
    Invariant(
        "place_is_given_once",
        "A request gets its place in the order while it waits to be admitted, and keeps it.",
        implies(
            all_of(status[r] != ABSENT, no(held_before(status[r] == WAITING))),
            all_of(priority[r] == before(priority[r]), arrival[r] == before(arrival[r])),
        ),
        property="V10",
        rule="vLLM Request.__lt__",
    ),
    Invariant(
        "preemption_is_in_turn",
        "Nobody is preempted for a request that is served after it.",
        preempted[step] == in_turn[step],
        property="V10",
        rule="vllm#18115; vllm#41951",
    ),
)
