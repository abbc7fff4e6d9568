"""What is always true of one request."""

from kvproof.spec.expression import (
    Formula,
    all_of,
    any_of,
    before,
    count_if,
    held_before,
    implies,
    no,
)
from kvproof.spec.roles import BLOCK_SIZE, TOTAL_BLOCKS, fence, pool, request, step
from kvproof.spec.rows import Invariant
from kvproof.spec.statuses import (
    ABSENT,
    FINISHED_LENGTH,
    FINISHED_STOPPED,
    LEGAL_EDGES,
    PREEMPTED,
    RUNNING,
    finished,
    queued_for_admission,
)
from kvproof.spec.variables import (
    computed,
    fenced,
    free,
    held,
    is_open,
    issued,
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
)

r = request.index("r")
e = fence.index("e")


def _legal_edge() -> Formula:
    moves = (
        all_of(held_before(status[r] == source), status[r].is_in(source, *targets))
        for source, targets in LEGAL_EDGES
    )
    return any_of(*moves)


def _becomes_running() -> Formula:
    return all_of(no(held_before(status[r] == RUNNING)), status[r] == RUNNING)


def _becomes_preempted() -> Formula:
    return all_of(no(held_before(status[r] == PREEMPTED)), status[r] == PREEMPTED)


INVARIANTS = (
    Invariant(
        "legal_edges",
        "A request moves only along the declared edges; a finished one only leaves its row.",
        _legal_edge(),
        property="L2",
    ),
    Invariant(
        "absent_is_blank",
        "A vacant row remembers nothing of the request that was in it.",
        implies(
            status[r] == ABSENT,
            all_of(
                known[r] == 0,
                limit[r] == 0,
                owed[r] == 0,
                preemptions[r] == 0,
                no(stopped[r]),
            ),
        ),
        property="L5",
    ),
    Invariant(
        "only_running_holds",
        "A request that is not RUNNING holds no block: every exit has released its table.",
        implies(status[r] != RUNNING, held[r] == 0),
        property="S6",
        rule="vllm#18411",
    ),
    Invariant(
        "waiting_starts_over",
        "A request that waits for admission has nothing computed and nothing in flight.",
        implies(
            any_of(status[r] == ABSENT, queued_for_admission(status[r])),
            all_of(computed[r] == 0, owed[r] == 0),
        ),
        property="L6",
    ),
    Invariant(
        "waiting_is_incomplete",
        "A request that waits for admission still has a token to sample.",
        implies(
            queued_for_admission(status[r]),
            all_of(known[r] < limit[r], no(stopped[r])),
        ),
        property="L7",
    ),
    Invariant(
        "complete_has_its_table",
        "A running request that can finish has computed all but its last token.",
        implies(
            all_of(status[r] == RUNNING, any_of(stopped[r], known[r] == limit[r])),
            all_of(computed[r] >= 1, computed[r] + 1 == known[r], scheduled[r] == 0),
        ),
        property="L7",
    ),
    Invariant(
        "finished_for_a_reason",
        "A request ends as stopped only after a stop token, and by length only at its limit.",
        all_of(
            implies(status[r] == FINISHED_STOPPED, stopped[r]),
            implies(status[r] == FINISHED_LENGTH, all_of(known[r] == limit[r], no(stopped[r]))),
        ),
        property="L7",
    ),
    Invariant(
        "finishes_with_its_table",
        "A request ends as stopped or by length only while it still holds its block table.",
        implies(
            all_of(
                held_before(status[r] == RUNNING),
                status[r].is_in(FINISHED_STOPPED, FINISHED_LENGTH),
            ),
            before(held[r]) >= 1,
        ),
        property="L7",
    ),
    Invariant(
        "only_running_is_scheduled",
        "Only a RUNNING request has tokens in the open step, and only while a step is open.",
        implies(scheduled[r] >= 1, all_of(status[r] == RUNNING, is_open[step])),
        property="L2",
    ),
    Invariant(
        "request_has_a_prompt",
        "A request in the table knows at least one token.",
        implies(status[r] != ABSENT, known[r] >= 1),
        property="N1",
    ),
    Invariant(
        "tokens_in_order",
        "Computed and scheduled tokens are known ones, and known ones stay within the limit.",
        all_of(computed[r] + scheduled[r] <= known[r], known[r] <= limit[r]),
        property="N1",
    ),
    Invariant(
        "fits_an_empty_pool",
        "All tokens that a request can ever have computed fit into an empty pool.",
        limit[r] <= TOTAL_BLOCKS * BLOCK_SIZE + 1,
        property="V2",
        rule="vllm#39734",
    ),
    Invariant(
        "table_covers_tokens",
        "The table of a running request covers its computed and its scheduled tokens.",
        implies(status[r] == RUNNING, computed[r] + scheduled[r] <= held[r] * BLOCK_SIZE),
        property="S10",
    ),
    Invariant(
        "table_is_no_longer_than_needed",
        "A table has no block beyond the one that holds the last known token.",
        held[r] * BLOCK_SIZE < known[r] + BLOCK_SIZE,
        property="S10",
    ),
    Invariant(
        "sample_owed_when_computed",
        "A running request is owed a sample exactly while all of its known tokens are computed.",
        implies(status[r] == RUNNING, owed[r] == count_if(computed[r] == known[r])),
        property="N2",
    ),
    Invariant(
        "owed_means_in_flight",
        "A sample is owed only by a dispatched frame that has not been processed.",
        implies(owed[r] >= 1, processed[step] < last_frame[r]),
        property="N2",
    ),
    Invariant(
        "finished_is_owed_at_most_one",
        "Only an aborted request can end while a sample is owed, and only one.",
        all_of(
            implies(finished(status[r]), owed[r] <= 1),
            implies(status[r].is_in(FINISHED_STOPPED, FINISHED_LENGTH), owed[r] == 0),
        ),
        property="N2",
    ),
    Invariant(
        "frames_are_numbered",
        "The last frame of a request has been dispatched: it is not the open step.",
        last_frame[r] + count_if(is_open[step]) <= issued[step],
        property="N2",
    ),
    Invariant(
        "admission_fits",
        "A request starts to run only if all its known tokens fit into the free blocks.",
        implies(_becomes_running(), before(known[r]) <= before(free[pool]) * BLOCK_SIZE),
        property="S8",
        rule="vllm#11565",
    ),
    Invariant(
        "preempting_step_admits_nobody",
        "While the open step has made a preemption, the number of running requests never rises.",
        implies(held_before(preempted[step] >= 1), running[pool] <= before(running[pool])),
        property="V6",
        rule="vLLM Scheduler.schedule",
    ),
    Invariant(
        "preemption_pays",
        "A preempted request gave up at least one block, and no unprocessed frame touches it.",
        implies(
            _becomes_preempted(),
            all_of(before(held[r]) >= 1, before(last_frame[r]) <= before(processed[step])),
        ),
        property="V6",
        rule="vllm#49674",
    ),
    Invariant(
        "preemption_pays_at_once",
        "The fence that takes the blocks of a preempted request can be drained at once.",
        implies(
            all_of(_becomes_preempted(), fenced[e] > before(fenced[e])),
            until[e] <= processed[step],
        ),
        property="V6",
        rule="vllm#49674",
    ),
    Invariant(
        "preemption_is_needed",
        "Each preemption serves a running request that all free blocks together could not serve.",
        preempted[step] == needed[step],
        property="V6",
    ),
    Invariant(
        "preemption_is_counted",
        "Each preemption counts once, for its request and for the step, and at no other time.",
        all_of(
            implies(
                _becomes_preempted(),
                all_of(
                    preemptions[r] == before(preemptions[r]) + 1,
                    preempted[step] == before(preempted[step]) + 1,
                ),
            ),
            implies(
                all_of(no(_becomes_preempted()), status[r] != ABSENT),
                preemptions[r] == before(preemptions[r]),
            ),
        ),
        property="V6",
    ),
)
