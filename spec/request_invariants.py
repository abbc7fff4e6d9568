"""What is always true of one request."""

from kvproof.spec.expected import expected
from kvproof.spec.expression import (
    Formula,
    Number,
    all_of,
    any_of,
    before,
    choose,
    count_if,
    held_before,
    implies,
    larger,
    no,
)
from kvproof.spec.moves import starts_to_run
from kvproof.spec.roles import (
    BLOCK_SIZE,
    LOOKAHEAD,
    MAX_DRAFTS,
    TOTAL_BLOCKS,
    WATERMARK,
    fence,
    pool,
    request,
    step,
)
from kvproof.spec.rows import Invariant
from kvproof.spec.statuses import (
    ABSENT,
    FINISHED,
    FINISHED_ERROR,
    FINISHED_LENGTH,
    FINISHED_STOPPED,
    LEGAL_EDGES,
    PREEMPTED,
    RUNNING,
    WAITING_FOR_GRAMMAR,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING,
    finished,
    parked,
    queued_for_admission,
)
from kvproof.spec.variables import (
    arrival,
    ceiling,
    computed,
    credit,
    decoding,
    drafts,
    fenced,
    free,
    held,
    is_open,
    issued,
    items_held,
    known,
    landed,
    last_frame,
    limit,
    load_failed,
    loading,
    needed,
    preempted,
    preemptions,
    priority,
    processed,
    remote,
    returned,
    running,
    scheduled,
    spoiled,
    stale,
    status,
    stopped,
    turn,
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


def _is_as_it_was() -> Formula:
    """Say that a finished request has not changed."""
    kept = (
        known,
        limit,
        ceiling,
        drafts,
        computed,
        scheduled,
        stale,
        last_frame,
        preemptions,
        held,
        remote,
    )
    return all_of(
        any_of(*(all_of(held_before(status[r] == end), status[r] == end) for end in FINISHED)),
        *(variable[r] == before(variable[r]) for variable in kept),
        *(held_before(flag[r]) == flag[r] for flag in (decoding, stopped, loading, landed)),
        items_held[r] == before(items_held[r]),
    )


def _slots_to_be_had() -> Number:
    """Return the slots of free blocks, of hits that an admission counts on, and of its table."""
    blocks = before(free[pool]) + before(held[r]) + credit[step] - before(credit[step])
    return blocks * BLOCK_SIZE


def _becomes_preempted() -> Formula:
    return all_of(held_before(status[r] == RUNNING), status[r] == PREEMPTED)


INVARIANTS = (
    Invariant(
        "legal_edges",
        "A request moves only along the declared edges; a finished one only leaves its row.",
        _legal_edge(),
        property="L2",
        rule="vllm#52969",
    ),
    Invariant(
        "finished_absorbs",
        "Whatever comes, a finished request stays what it is, until it leaves its row.",
        implies(
            all_of(held_before(finished(status[r])), status[r] != ABSENT),
            _is_as_it_was(),
        ),
        property="L3",
        rule="sgl-jax#1523",
    ),
    Invariant(
        "absent_is_blank",
        "A vacant row remembers nothing of the request that was in it.",
        implies(
            status[r] == ABSENT,
            all_of(
                known[r] == 0,
                limit[r] == 0,
                ceiling[r] == 0,
                drafts[r] == 0,
                no(decoding[r]),
                stale[r] == 0,
                preemptions[r] == 0,
                no(stopped[r]),
            ),
        ),
        property="L5",
        rule="vllm#15326",
    ),
    Invariant(
        "absent_has_no_place",
        "A vacant row has no place in the order of service, and no load to remember.",
        implies(
            status[r] == ABSENT,
            all_of(no(load_failed[r]), priority[r] == 0, arrival[r] == 0, turn[r] == 0),
        ),
        property="L5",
        rule="vllm#15326",
    ),
    Invariant(
        "only_running_holds",
        "A request holds blocks only while it runs, is loaded, or waits with what was loaded.",
        any_of(
            status[r].is_in(RUNNING, WAITING_FOR_REMOTE_KVS),
            landed[r],
            held[r] == 0,
        ),
        property="S6",
        rule="vllm#18411",
    ),
    Invariant(
        "waiting_starts_over",
        "A request that waits unloaded has nothing computed and no draft tokens.",
        implies(
            all_of(
                no(landed[r]),
                any_of(status[r] == ABSENT, queued_for_admission(status[r]), parked(status[r])),
            ),
            all_of(computed[r] == 0, drafts[r] == 0, no(decoding[r])),
        ),
        property="L6",
        rule="vllm-project/vllm-omni#6053; vllm#30916",
    ),
    Invariant(
        "waiting_wants_no_sample",
        "A request that waits wants no sample that is still in flight.",
        implies(
            any_of(status[r] == ABSENT, queued_for_admission(status[r]), parked(status[r])),
            last_frame[r] <= larger(processed[step], stale[r]),
        ),
        property="N2",
        rule="vllm#48245",
    ),
    Invariant(
        "samples_come_back",
        "Tokens become known only by a frame that has come back, and that is of this attempt.",
        implies(
            all_of(
                held_before(status[r].is_in(RUNNING, PREEMPTED)),
                known[r] > before(known[r]),
            ),
            all_of(
                before(processed[step]) < before(returned[step]),
                any_of(
                    held_before(status[r] == PREEMPTED),
                    before(stale[r]) <= before(processed[step]),
                ),
                any_of(
                    held_before(status[r] == RUNNING),
                    before(last_frame[r]) == before(returned[step]),
                ),
                any_of(MAX_DRAFTS == 0, before(last_frame[r]) <= before(returned[step])),
            ),
        ),
        property="N2",
        rule="vllm#48245; vllm#6586",
    ),
    Invariant(
        "known_tokens_stay_known",
        "Nothing makes a request forget a token it knows, until it leaves its row.",
        implies(status[r] != ABSENT, known[r] >= before(known[r])),
        property="N1",
        rule="vLLM Scheduler._update_request_with_output",
    ),
    Invariant(
        "tokens_are_sampled_or_given",
        "A token becomes known by a sample, or is the caller's: at arrival or for the next turn.",
        implies(
            known[r] > before(known[r]),
            held_before(status[r].is_in(RUNNING, PREEMPTED, ABSENT, WAITING_FOR_STREAMING)),
        ),
        property="N2",
        rule="vllm#53321",
    ),
    Invariant(
        "late_end_brings_a_token",
        "A preempted request ends by itself only with the token that came late.",
        implies(
            all_of(
                held_before(status[r] == PREEMPTED),
                status[r].is_in(FINISHED_STOPPED, FINISHED_LENGTH),
            ),
            known[r] == before(known[r]) + 1,
        ),
        property="L7",
        rule="vLLM Scheduler.update_from_output, stopped_preempted_reqs",
    ),
    Invariant(
        "parks_for_a_reason",
        "A session is parked only when its turn is over.",
        implies(
            all_of(
                held_before(status[r] == RUNNING),
                status[r] == WAITING_FOR_STREAMING,
            ),
            any_of(held_before(stopped[r]), before(known[r]) == before(limit[r])),
        ),
        property="L7",
        rule="vLLM Scheduler._handle_stopped_request",
    ),
    Invariant(
        "nobody_is_scheduled_after_its_end",
        "A request whose last sample was a stop token gets no more tokens.",
        implies(scheduled[r] > before(scheduled[r]), no(held_before(stopped[r]))),
        property="L7",
        rule="vLLM check_stop",
    ),
    Invariant(
        "waiting_is_incomplete",
        "A request that waits for admission, or to be able to, still has a token to sample.",
        all_of(
            implies(
                any_of(
                    queued_for_admission(status[r]),
                    status[r].is_in(WAITING_FOR_GRAMMAR, WAITING_FOR_REMOTE_KVS),
                ),
                all_of(known[r] < limit[r], no(stopped[r])),
            ),
            implies(status[r] == WAITING_FOR_STREAMING, no(stopped[r])),
        ),
        property="L7",
        rule="vLLM check_stop",
    ),
    Invariant(
        "complete_has_its_table",
        "A running request that can finish has computed all but its last token, at least.",
        implies(
            all_of(status[r] == RUNNING, any_of(stopped[r], known[r] == limit[r])),
            all_of(computed[r] >= 1, computed[r] + 1 >= known[r]),
        ),
        property="L7",
        rule="vLLM check_stop",
    ),
    Invariant(
        "parked_occupies_nothing",
        "A parked request holds no block, uses no encoder entry and is in no step.",
        implies(parked(status[r]), all_of(held[r] == 0, items_held[r] == 0, scheduled[r] == 0)),
        property="V9",
        rule="vllm#53130",
        consequence=True,
    ),
    Invariant(
        "finished_for_a_reason",
        "A request ends as stopped only after a stop token, and by length only at its limit.",
        all_of(
            implies(status[r] == FINISHED_STOPPED, stopped[r]),
            implies(status[r] == FINISHED_LENGTH, all_of(known[r] == limit[r], no(stopped[r]))),
        ),
        property="L7",
        rule="vLLM check_stop",
    ),
    Invariant(
        "fails_for_a_reason",
        "A request ends as failed only while a load fills its table, or while it runs.",
        implies(
            status[r] == FINISHED_ERROR,
            held_before(status[r].is_in(FINISHED_ERROR, RUNNING, WAITING_FOR_REMOTE_KVS)),
        ),
        property="L7",
        rule="vLLM Scheduler.update_from_output, kv_load_failure_policy",
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
        rule="vllm-project/vllm-omni#6053",
    ),
    Invariant(
        "only_running_is_scheduled",
        "Only a RUNNING request has tokens in the open step, and only while a step is open.",
        implies(scheduled[r] >= 1, all_of(status[r] == RUNNING, is_open[step])),
        property="L2",
        rule="vllm#23713",
    ),
    Invariant(
        "request_has_a_prompt",
        "A request in the table knows at least one token.",
        implies(status[r] != ABSENT, known[r] >= 1),
        property="N1",
        rule="ascend#14283",
    ),
    Invariant(
        "tokens_in_order",
        "Computed and scheduled tokens are known ones, and known ones stay within the limit.",
        all_of(
            known[r] <= limit[r],
            limit[r] <= ceiling[r] + count_if(status[r] != ABSENT),
            computed[r] + scheduled[r] <= ceiling[r],
            drafts[r] <= MAX_DRAFTS,
            implies(
                drafts[r] >= 1,
                all_of(known[r] + drafts[r] <= ceiling[r], computed[r] < known[r]),
            ),
            implies(scheduled[r] >= 1, computed[r] + scheduled[r] <= expected(r) + drafts[r]),
            implies(MAX_DRAFTS >= 1, computed[r] <= known[r] + MAX_DRAFTS),
        ),
        property="N1",
        rule="lmc#2327",
    ),
    Invariant(
        "scheduled_is_wanted",
        "The open step asks for no sample beyond the limit, and for none behind draft tokens.",
        implies(
            scheduled[r] >= 1,
            all_of(expected(r) < limit[r], implies(MAX_DRAFTS >= 1, computed[r] < known[r])),
        ),
        property="N1",
        rule="vLLM Scheduler.schedule, num_output_placeholders",
    ),
    Invariant(
        "fits_an_empty_pool",
        "All tokens that a request can ever have computed fit into an empty pool.",
        any_of(status[r] == ABSENT, ceiling[r] + LOOKAHEAD <= TOTAL_BLOCKS * BLOCK_SIZE),
        property="V2",
        rule="vllm#39734",
    ),
    Invariant(
        "table_covers_tokens",
        "The table of a running request covers its computed and its scheduled tokens.",
        implies(status[r] == RUNNING, computed[r] + scheduled[r] <= held[r] * BLOCK_SIZE),
        property="S10",
        rule="vllm-project/vllm-omni#6053",
    ),
    Invariant(
        "table_is_no_longer_than_needed",
        "A table has no block beyond the one that holds the last token known or in flight.",
        held[r] * BLOCK_SIZE
        < choose(all_of(status[r] == RUNNING, MAX_DRAFTS == 0), expected(r), known[r])
        + MAX_DRAFTS
        + LOOKAHEAD
        + BLOCK_SIZE,
        property="S10",
        rule="vLLM KVCacheManager.allocate_slots",
    ),
    Invariant(
        "sample_is_in_flight",
        "What a running request has computed beyond its known tokens, a frame in flight brings.",
        implies(
            all_of(status[r] == RUNNING, computed[r] >= known[r]),
            all_of(last_frame[r] > processed[step], last_frame[r] > stale[r]),
        ),
        property="N2",
        rule="vllm#48245",
    ),
    Invariant(
        "sample_is_wanted",
        "No frame brings a running request more tokens than it may have.",
        implies(
            all_of(status[r] == RUNNING, computed[r] >= known[r]),
            all_of(known[r] < limit[r], any_of(MAX_DRAFTS >= 1, computed[r] < limit[r])),
        ),
        property="N2",
        rule="vLLM Scheduler.schedule, num_output_placeholders",
    ),
    Invariant(
        "stale_is_in_flight",
        "A sample is dropped only if it comes from a frame that was dispatched before.",
        all_of(
            stale[r] <= spoiled[step],
            stale[r] <= last_frame[r],
            spoiled[step] + count_if(is_open[step]) <= issued[step],
        ),
        property="N2",
        rule="vllm#48245",
    ),
    Invariant(
        "decoding_has_computed",
        "A request that decodes has a sample, and has computed all known tokens but the last.",
        implies(decoding[r], all_of(known[r] >= 2, computed[r] + 1 >= known[r])),
        property="N2",
        rule="vLLM AsyncScheduler._update_request_with_output",
    ),
    Invariant(
        "drafts_are_tried_once",
        "A request that gets a sample decodes, and has no draft tokens left from before it.",
        implies(
            all_of(status[r] == RUNNING, known[r] > before(known[r])),
            all_of(drafts[r] == 0, decoding[r]),
        ),
        property="L6",
        rule="vllm#30916",
    ),
    Invariant(
        "drafts_follow_the_last_token",
        "Draft tokens are given only where no known token but the last is left to compute.",
        implies(drafts[r] > before(drafts[r]), computed[r] + 1 == known[r]),
        property="L6",
        rule="vLLM Scheduler.update_draft_token_ids",
    ),
    Invariant(
        "frames_are_numbered",
        "The last frame of a request has been dispatched: it is not the open step.",
        last_frame[r] + count_if(is_open[step]) <= issued[step],
        property="N2",
        rule="vllm#45357",
    ),
    Invariant(
        "admission_fits",
        "A request starts to run only if all its known tokens fit into the free blocks.",
        implies(starts_to_run(r), known[r] + LOOKAHEAD <= _slots_to_be_had()),
        property="S8",
        rule="vllm#11565",
    ),
    Invariant(
        "admission_starts",
        "A request starts to run only if at least one token fits into free blocks and hits.",
        implies(starts_to_run(r), _slots_to_be_had() >= 1 + LOOKAHEAD),
        property="S8",
        rule="vLLM KVCacheManager.allocate_slots",
    ),
    Invariant(
        "admission_keeps_the_watermark",
        "While others run, an admission leaves the watermark free.",
        implies(
            all_of(starts_to_run(r), before(running[pool]) >= 1),
            known[r] + LOOKAHEAD + WATERMARK * BLOCK_SIZE <= _slots_to_be_had(),
        ),
        property="S8",
        rule="vLLM KVCacheManager.allocate_slots, watermark_blocks",
    ),
    Invariant(
        "start_keeps_the_watermark",
        "While others run, an admission leaves the watermark free, at least for its first token.",
        implies(
            all_of(starts_to_run(r), before(running[pool]) >= 1),
            _slots_to_be_had() >= 1 + LOOKAHEAD + WATERMARK * BLOCK_SIZE,
        ),
        property="S8",
        rule="vLLM KVCacheManager.allocate_slots, watermark_blocks",
    ),
    Invariant(
        "admission_is_in_a_pass",
        "A request starts to run, or skips computing tokens, only while a step is open.",
        implies(
            any_of(
                starts_to_run(r),
                all_of(
                    held_before(status[r] == RUNNING),
                    status[r] == RUNNING,
                    computed[r] > before(computed[r]),
                ),
            ),
            held_before(is_open[step]),
        ),
        property="S8",
        rule="vLLM Scheduler.schedule",
    ),
    Invariant(
        "only_the_running_compute",
        "Tokens are computed, or come from elsewhere, only while a request runs or is loaded.",
        implies(
            computed[r] > before(computed[r]),
            held_before(status[r].is_in(RUNNING, WAITING_FOR_REMOTE_KVS)),
        ),
        property="S10",
        rule="vLLM Scheduler._update_after_schedule",
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
        "A preempted request gave up at least one block.",
        implies(_becomes_preempted(), before(held[r]) >= 1),
        property="V6",
        rule="vllm#49674",
    ),
    Invariant(
        "preemption_is_quiet",
        "No frame in flight touches the blocks of a request that is preempted.",
        implies(_becomes_preempted(), before(last_frame[r]) <= before(processed[step])),
        property="V6",
        rule="vllm#49674",
    ),
    Invariant(
        "preemption_pays_at_once",
        "The fence that takes the blocks of a preempted request can be drained at once.",
        implies(
            all_of(_becomes_preempted(), fenced[e] > before(fenced[e])),
            until[e] <= returned[step],
        ),
        property="V6",
        rule="vllm#49674",
    ),
    Invariant(
        "preemption_is_needed",
        "Each preemption serves a running request that all free blocks together could not serve.",
        preempted[step] == needed[step],
        property="V6",
        rule="vllm#49674",
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
        rule="vllm#44773; vLLM Scheduler._preempt_request",
    ),
)
