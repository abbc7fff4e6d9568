"""Who is served first: by priority, then by arrival, then by admission.

First come, first served leaves priority and arrival at 0, so that the number of the admission alone
decides. The request that goes before all other running ones is never preempted for another, which
is why somebody always gets on (vllm#18115, vllm#21809).
"""

from kvproof.spec.expression import Formula, Index, Number, all_of, any_of, total
from kvproof.spec.roles import request
from kvproof.spec.statuses import RUNNING
from kvproof.spec.variables import arrival, priority, status, turn

x = request.index("x")


def goes_before(first: Index, second: Index) -> Formula:
    """Return whether `first` is served before `second`; nobody goes before itself.

    Rule: vLLM Request.__lt__, and the order of the running list among equals.
    """
    return any_of(
        priority[first] < priority[second],
        all_of(
            priority[first] == priority[second],
            any_of(
                arrival[first] < arrival[second],
                all_of(arrival[first] == arrival[second], turn[first] < turn[second]),
            ),
        ),
    )


def does_not_go_before(first: Index, second: Index) -> tuple[Formula, ...]:
    """Return the opposite, as conditions each of which a guard can name as the one that fails."""
    other_priority = priority[first] != priority[second]
    other_arrival = arrival[first] != arrival[second]
    return (
        priority[first] >= priority[second],
        any_of(other_priority, arrival[first] >= arrival[second]),
        any_of(other_priority, other_arrival, turn[first] >= turn[second]),
    )


def runners_before(owner: Index) -> Number:
    """Return how many running requests are served before `owner`."""
    return total(x, all_of(status[x] == RUNNING, goes_before(x, owner)))


def goes_first(owner: Index) -> Formula:
    """Return whether a running request goes before all others that run, or level with them."""
    return all_of(status[owner] == RUNNING, runners_before(owner) == 0)
