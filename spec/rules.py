"""What the reference does, in sixteen items, and which rows and claims of the declaration say it.

The reference is the scheduler of vLLM 0.25.1. Public reports are in `reports.py`; which tests
show a rule is said by the tests, with `@pytest.mark.rule(...)`.
"""

from __future__ import annotations

from attrs import frozen

LATER = "Comes later"


@frozen
class Rule:
    """One thing that the reference does, or that a report teaches; `claims` are named laws.

    Attributes:
        name: the number of the item, or the report as the rows cite it.
        sentence: what the rule is.
        rows: transitions that do it.
        claims: invariants, measures and progress that state it.
        note: what is kept elsewhere; only `LATER` excuses a rule that nothing keeps yet.

    """

    name: str
    sentence: str
    rows: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    note: str = ""


ITEMS = (
    Rule(
        "1",
        "Preemption takes a running request out of the running, gives back its blocks and its"
        " encoder entries, and resets what belongs to the attempt; it waits at the front.",
        rows=("preempt", "let_go"),
        claims=(
            "legal_edges",
            "only_running_holds",
            "only_running_uses_entries",
            "waiting_starts_over",
            "waiting_is_incomplete",
            "preemption_is_counted",
            "running_is_counted",
            "waiting_is_counted",
            "requests_running",
            "requests_waiting",
        ),
        note="The place in the queue is the runtime's",
    ),
    Rule(
        "2",
        "While a running request lacks blocks, one victim after another is preempted, until it"
        " fits or is the victim itself.",
        rows=("preempt", "grow"),
        claims=(
            "preemption_is_needed",
            "preemption_pays",
            "preemption_is_quiet",
            "preemption_pays_at_once",
            "fresh_step_does_something",
        ),
    ),
    Rule(
        "3",
        "The victim is the last that was admitted or, by priority, the one with the largest"
        " priority and arrival.",
        rows=("preempt", "preempt_at_will", "rank"),
        claims=(
            "preemption_is_in_turn",
            "turns_are_dealt",
            "turns_are_past",
            "newcomers_go_last",
            "place_is_given_once",
            "first_running_goes_on",
        ),
        note="The choice is the runtime's or a policy's, and the row accepts no harmful one",
    ),
    Rule(
        "4",
        "A victim that the open step has scheduled leaves nothing in it: tokens, blocks, drafts,"
        " encoder inputs and both budgets go back.",
        rows=("unschedule", "unencode", "preempt"),
        claims=(
            "budget_is_spent_once",
            "only_running_is_scheduled",
            "requests_in_step",
            "budget",
            "encoder_budget",
        ),
        note="The place of the scan is the runtime's",
    ),
    Rule(
        "5",
        "A step that has preempted admits nobody.",
        rows=("admit", "admit_past_loaded", "admit_chunk"),
        claims=("preempting_step_admits_nobody",),
    ),
    Rule(
        "6",
        "A freed block keeps its hash until it is taken again and can be hit; at least one token"
        " is computed anew, and a hit that idles counts as needed.",
        rows=("share", "publish", "publish_early", "forget", "grow", "admit"),
        claims=(
            "shared_is_published",
            "published_is_known",
            "published_is_written",
            "published_by_the_running",
            "content_is_stable",
            "writer_is_alone",
            "published_blocks",
            "unpublished_blocks",
            "hits_counted_on_are_shared",
            "admission_fits",
        ),
    ),
    Rule(
        "7",
        "The last block of a table is freed first, so that a chain is evicted from its end.",
        rows=("drain",),
        claims=("fenced_is_counted", "fenced_blocks"),
        note="The order of the free queue is the runtime's",
    ),
    Rule(
        "8",
        "A throttled step leaves prefills for later, unless nobody decodes or the last step that"
        " was not throttled left a backlog.",
        rows=("begin", "schedule", "dispatch"),
        claims=(
            "deferring_step_has_no_prefill",
            "deferring_step_has_a_decode",
            "backlog_is_seen",
            "deferring_step_serves_decodes",
        ),
    ),
    Rule(
        "9",
        "A remote load parks its request with its blocks until the end signal, once, and is"
        " admitted only beside what prefills in flight still need.",
        rows=(
            "await_load",
            "await_load_regardless",
            "load_now_again",
            "grow_for_load",
            "start_load",
            "share",
            "land",
            "fail_load",
            "lose_load",
            "promote",
            "promote_preempted",
            "start_over",
            "start_over_preempted",
            "admit_landed",
            "admit_landed_chunk",
            "load_now",
            "note_undecided",
            "cut",
            "note_prefill",
            "unpublish",
            "restart",
            "finish_error",
            "pin",
            "unpin",
            "abort",
        ),
        claims=(
            "only_parked_is_loaded",
            "load_has_room",
            "loaded_starts_over",
            "loaded_has_passed_no_item",
            "landed_has_its_kv",
            "loaded_is_not_published",
            "table_is_kept_while_loading",
            "load_ends_or_is_waited_for",
            "pinned_is_kept",
            "fence_takes_one_table",
            "only_blocks_are_pinned",
            "ended_load_brings_no_more",
            "preempting_step_loads_nobody",
            "load_fits",
            "load_keeps_the_watermark",
            "parks_for_a_load",
            "fails_for_a_reason",
            "loaded_is_what_it_was",
            "admission_is_in_a_pass",
            "transfers_in_flight",
            "load_comes_to_an_end",
            "pin_comes_to_an_end",
            "only_loaded_claim",
            "claim_covers_tokens",
            "table_is_within_its_claim",
            "claims_are_counted",
            "claims_fit",
            "claims_leave_room",
            "loaded_is_counted",
            "loaded_go_first",
            "load_leaves_room",
            "fruitless_load_is_noted",
            "failed_load_is_not_repeated",
            "failed_load_is_computed",
            "preempted_may_be_loaded",
            "loads_to_try",
            "blocks_nobody_gives_back",
            "loaded_is_admitted",
        ),
        note="What prefills in flight still need counts for the reference alone, in the runtime",
    ),
    Rule(
        "10",
        "With several steps in flight, blocks return when the last step that may touch them has"
        " come back.",
        rows=(
            "drain",
            "drain_early",
            "come_back",
            "withdraw",
            "preempt",
            "preempt_in_flight",
            "abort",
            "finish_stopped",
        ),
        claims=(
            "fences_are_numbered",
            "frame_touches_its_tables",
            "touched_is_protected",
            "fences_end_in_order",
            "quiet_table_waits_for_no_frame",
            "quiet_before_reuse",
            "preemption_pays_at_once",
            "fence_comes_to_an_end",
            "frames_out",
        ),
    ),
    Rule(
        "11",
        "With several steps in flight, a request runs ahead of its samples, as far as its limit;"
        " samples of an older attempt are dropped, and no others.",
        rows=(
            "schedule",
            "schedule_miscounted",
            "grow_miscounted",
            "accept",
            "accept_one",
            "accept_miscounted",
            "accept_late",
            "finish_stopped_late",
            "finish_length_late",
            "process",
            "process_miscounted",
            "retire",
            "park_session",
        ),
        claims=(
            "frames_in_flight",
            "frames_in_flight_count",
            "frame_in_flight_comes_to_an_end",
            "sample_is_in_flight",
            "samples_come_back",
            "tokens_are_sampled_or_given",
            "known_tokens_stay_known",
            "waiting_wants_no_sample",
            "late_end_brings_a_token",
            "sample_is_wanted",
            "scheduled_is_wanted",
            "stale_is_in_flight",
            "decoding_has_computed",
            "finished_request_leaves",
            "rows_taken",
        ),
    ),
    Rule(
        "12",
        "Prompts are computed in chunks, within the budget of tokens, the running requests, the"
        " model's length, the watermark and the check that the whole sequence fits.",
        rows=(
            "arrive",
            "arrive_unchecked",
            "admit",
            "admit_chunk",
            "grow",
            "begin",
            "schedule",
            "dispatch",
            "process",
        ),
        claims=(
            "request_has_a_prompt",
            "tokens_in_order",
            "fits_an_empty_pool",
            "admission_fits",
            "admission_starts",
            "admission_keeps_the_watermark",
            "start_keeps_the_watermark",
            "table_covers_tokens",
            "only_the_running_compute",
            "table_is_no_longer_than_needed",
            "running_is_counted",
            "conservation",
            "free_is_counted",
            "referenced_is_counted",
            "free_blocks",
            "budget_is_spent_once",
            "closed_step_is_empty",
            "open_steps",
            "frames_in_flight",
            "frames_in_flight_count",
            "closed_step_moves_on",
        ),
    ),
    Rule(
        "13",
        "Draft tokens are tried with the next token, in slots kept for them; a rejected one is"
        " computed no more.",
        rows=("propose", "schedule", "accept", "accept_one"),
        claims=(
            "drafts_are_tried_once",
            "drafts_follow_the_last_token",
            "sample_is_in_flight",
            "tokens_in_order",
            "tokens_to_sample",
        ),
    ),
    Rule(
        "14",
        "Encoder entries take slots and a budget of the step, are shared, and are released when"
        " their tokens are computed; a refused admission takes none.",
        rows=("encode", "unencode", "reuse", "release", "let_go", "evict"),
        claims=(
            "encoder_slots_are_conserved",
            "used_slots_are_counted",
            "idle_slots_are_counted",
            "users_are_exact",
            "items_are_counted",
            "items_are_unique",
            "used_entries_exist",
            "only_running_uses_entries",
            "released_is_behind",
            "released_by_a_frame_that_is_back",
            "encoder_budget_is_kept",
            "encoder_budget_is_of_a_step",
            "encoder_budget",
            "entries_in_use",
            "idle_slots",
            "entries_can_be_let_go",
            "full_encoder_cache_makes_room",
        ),
    ),
    Rule(
        "15",
        "A request is aborted or finished in any state, parked ones too, once, and its blocks"
        " come back exactly once.",
        rows=(
            "abort",
            "finish_stopped",
            "finish_length",
            "drain",
            "retire",
            "await_grammar",
            "grammar_ready",
            "park_session",
            "continue_session",
        ),
        claims=(
            "finished_absorbs",
            "requests_to_end",
            "absent_is_blank",
            "absent_has_no_place",
            "complete_has_its_table",
            "parks_for_a_reason",
            "nobody_is_scheduled_after_its_end",
            "finished_for_a_reason",
            "finishes_with_its_table",
            "frames_are_numbered",
            "fences_are_numbered",
            "frame_touches_its_tables",
            "touched_is_protected",
            "quiet_before_reuse",
            "queued_means_unreferenced",
            "references_are_exact",
            "references_are_counted",
            "held_is_counted",
            "entries_are_unique",
            "parked_occupies_nothing",
            "parked_request_has_an_exit",
            "request_can_be_aborted",
            "finished_request_leaves",
        ),
    ),
    Rule(
        "16",
        "Statistics of the prefix cache tell requests that had been preempted from fresh ones.",
        rows=("preempt",),
        claims=("preemption_is_counted",),
        note="The statistics are the runtime's",
    ),
)
