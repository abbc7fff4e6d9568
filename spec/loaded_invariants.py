"""What is always true of requests that hold loaded blocks: they fit together, and go first.

Nobody can preempt them, so that what they need must not depend on what anybody else gives back.
"""

from kvproof.spec.expression import (
    Formula,
    Index,
    Number,
    all_of,
    any_of,
    before,
    choose,
    held_before,
    implies,
    no,
    total,
)
from kvproof.spec.moves import is_parked_to_be_loaded, starts_to_run
from kvproof.spec.roles import BLOCK_SIZE, LOOKAHEAD, TOTAL_BLOCKS, pool, request, step
from kvproof.spec.rows import Invariant
from kvproof.spec.service_order import goes_before
from kvproof.spec.statuses import (
    PREEMPTED,
    RUNNING,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
    parked,
)
from kvproof.spec.variables import (
    claimed,
    claims,
    computed,
    credit,
    free,
    held,
    is_open,
    known,
    landed,
    load_failed,
    loaded,
    remote,
    status,
)

r = request.index("r")
s = request.index("s")
x = request.index("x")


def is_loaded_or_waits_loaded(owner: Index) -> Formula:
    """Return whether a request holds blocks that nobody can take from it."""
    return any_of(status[owner] == WAITING_FOR_REMOTE_KVS, landed[owner])


def _goes_first_alone() -> Formula:
    """Say that all others that run are served after `s`."""
    return all_of(
        status[s] == RUNNING,
        total(x, all_of(status[x] == RUNNING, no(goes_before(s, x)))) == 1,
    )


def _blocks_to_be_had() -> Number:
    return before(free[pool]) + credit[step] - before(credit[step])


INVARIANTS = (
    Invariant(
        "only_loaded_claim",
        "Only a request that is loaded, or waits loaded, has blocks kept for it.",
        any_of(is_loaded_or_waits_loaded(r), claimed[r] == 0),
        property="S6",
        rule="vllm#45388",
    ),
    Invariant(
        "claim_covers_tokens",
        "The claim of a loaded request covers all of its known tokens.",
        implies(is_loaded_or_waits_loaded(r), known[r] + LOOKAHEAD <= claimed[r] * BLOCK_SIZE),
        property="V5",
        rule="vllm#45388; vllm#57104",
    ),
    Invariant(
        "table_is_within_its_claim",
        "A loaded request holds no more blocks than it claims.",
        implies(is_loaded_or_waits_loaded(r), held[r] <= claimed[r]),
        property="V5",
        rule="vllm#45388",
    ),
    Invariant(
        "claims_are_counted",
        "The pool counts what all loaded requests claim.",
        claims[pool] == total(x, claimed[x]),
        property="V5",
        rule="vllm#45388",
    ),
    Invariant(
        "claims_fit",
        "All that is loaded fits into the pool together, each request with all of its tokens.",
        claims[pool] <= TOTAL_BLOCKS,
        property="V5",
        rule="vllm#30659; vllm#45388",
    ),
    Invariant(
        "claims_leave_room",
        "Of what is claimed all is held, by requests that do not run, but what is still to come.",
        total(x, choose(status[x] == RUNNING, 0, claimed[x] - held[x]))
        == claims[pool] - total(x, choose(status[x] == RUNNING, 0, held[x])),
        property="V5",
        rule="vllm#45388",
    ),
    Invariant(
        "loaded_is_counted",
        "The pool counts the requests that wait with loaded blocks.",
        loaded[pool] == total(x, landed[x]),
        property="V4",
        rule="vllm#45406",
    ),
    Invariant(
        "loaded_go_first",
        "While a request waits with loaded blocks, nobody without them starts to run.",
        implies(
            all_of(starts_to_run(r), no(held_before(landed[r]))),
            before(loaded[pool]) == 0,
        ),
        property="V4",
        rule="vllm#45406; vllm#57841",
    ),
    Invariant(
        "load_leaves_room",
        "A load leaves to the request that is served first what its known tokens still need.",
        implies(
            all_of(is_parked_to_be_loaded(r), _goes_first_alone()),
            known[s] + LOOKAHEAD + remote[r] <= (held[s] + _blocks_to_be_had()) * BLOCK_SIZE,
        ),
        property="V6",
        rule="vllm#18115; vllm#48433",
    ),
    Invariant(
        "fruitless_load_is_noted",
        "A request that waits without what it was to be loaded knows that its load has failed.",
        implies(
            any_of(
                all_of(
                    held_before(status[r] == WAITING_FOR_REMOTE_KVS),
                    status[r].is_in(WAITING, PREEMPTED),
                    no(landed[r]),
                ),
                all_of(held_before(status[r] == RUNNING), status[r] == WAITING),
            ),
            load_failed[r],
        ),
        property="V1",
        rule="vLLM Scheduler._update_waiting_for_remote_kv",
    ),
    Invariant(
        "failed_load_is_not_repeated",
        "A request whose load has failed is not loaded again in the same attempt.",
        implies(is_parked_to_be_loaded(r), no(held_before(load_failed[r]))),
        property="V1",
        rule="vllm#53250; vllm#57841",
    ),
    Invariant(
        "failed_load_is_computed",
        "What a load did not bring, the next attempt computes.",
        implies(
            all_of(
                held_before(load_failed[r]),
                held_before(status[r] == RUNNING),
                held_before(is_open[step]),
                is_open[step],
                held[r] == before(held[r]),
            ),
            computed[r] <= before(computed[r]),
        ),
        property="V1",
        rule="vLLM Scheduler.schedule, num_external_computed_tokens",
    ),
    Invariant(
        "preempted_may_be_loaded",
        "A preempted or parked request may be loaded, whatever became of its last load.",
        implies(
            any_of(
                all_of(held_before(status[r] == RUNNING), status[r] == PREEMPTED),
                all_of(held_before(status[r] == RUNNING), parked(status[r])),
            ),
            no(load_failed[r]),
        ),
        property="L6",
        rule="lmc#1969",
    ),
)
