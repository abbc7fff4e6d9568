"""Each public report as a fault that is planted in one row: the claim that should catch it does."""

import pytest
from attrs import evolve

from kvproof.spec.declaration import Declaration
from kvproof.spec.rows import Transition
from kvproof.spec.scheduler import SCHEDULER
from kvproof.spec.statuses import FINISHED, LIVE
from kvproof.verify.induction import check_row
from kvproof.verify.measures import check_measures_of_row
from kvproof.verify.mutation.row_mutants import mutants
from kvproof.verify.progress import check_progress
from kvproof.verify.verdict import Result, Verdict


def faulty_row(fault: str) -> Transition:
    """Return the row in which the named part is missing."""
    row = SCHEDULER.transition[fault.partition(" ")[0]]
    (mutant,) = [mutant for mutant in mutants(row) if mutant.fault == fault]
    return mutant.row


def refuted(results: list[Result]) -> list[str]:
    """Return the names of the refuted obligations."""
    return [result.name for result in results if result.verdict is Verdict.REFUTED]


def broken_by(row: Transition) -> list[str]:
    """Return the claims that a declaration with this row instead of its own breaks."""
    faulty: Declaration = SCHEDULER.with_transition(row)
    whole = faulty.complete_transitions[row.name]
    return refuted([*check_row(faulty, whole), *check_measures_of_row(faulty, whole)])


@pytest.mark.parametrize(
    ("fault", "claim"),
    [
        pytest.param(
            "admit without guard loaded[pool] == 0",
            "loaded_go_first",
            marks=pytest.mark.rule("vllm#45406", "vllm#57841"),
        ),
        pytest.param(
            "await_load without guard claims[pool] + claim <= TOTAL_BLOCKS",
            "claims_fit",
            marks=pytest.mark.rule("vllm#30659", "vllm#45388"),
        ),
        pytest.param(
            "await_load without guard known[r] + LOOKAHEAD <= claim * BLOCK_SIZE",
            "claim_covers_tokens",
            marks=pytest.mark.rule("vllm#57104"),
        ),
        pytest.param(
            "await_load without guard not load_failed[r]",
            "failed_load_is_not_repeated",
            marks=pytest.mark.rule("vllm#53250"),
        ),
        pytest.param(
            "preempt without guard priority[victim] >= priority[needy]",
            "preemption_is_in_turn",
            marks=pytest.mark.rule("vllm#41951", "vllm#18115"),
        ),
        pytest.param(
            "preempt without effect load_failed[victim] := false",
            "preempted_may_be_loaded",
            marks=pytest.mark.rule("lmc#1969"),
        ),
        pytest.param(
            "retire without guard last_frame[r] <= processed[step]",
            "waiting_wants_no_sample",
            marks=pytest.mark.rule("vllm#6586"),
        ),
        pytest.param(
            "dispatch without guard credit[step] == 0",
            "hits_counted_on_are_shared",
            marks=pytest.mark.rule("6", "vllm#11565"),
        ),
        pytest.param(
            "retire without effect known[r] := 0",
            "absent_is_blank",
            marks=pytest.mark.rule("vllm#15326"),
        ),
        pytest.param(
            "preempt without effect held[victim] := 0",
            "only_running_holds",
            marks=pytest.mark.rule("1", "vllm#18411"),
        ),
        pytest.param(
            "preempt without guard scheduled[victim] == 0",
            "only_running_is_scheduled",
            marks=pytest.mark.rule("4", "vllm#23713"),
        ),
        pytest.param(
            "grow without effect queued[b] := false",
            "free_is_counted",
            marks=pytest.mark.rule("vllm#24228"),
        ),
        pytest.param(
            "admit without guard known[r] + LOOKAHEAD <= (free[pool] + shared"
            " - (WATERMARK if running[pool] >= 1 else 0)) * BLOCK_SIZE",
            "admission_fits",
            marks=pytest.mark.rule("12", "vllm#25538", "vllm#37307"),
        ),
        pytest.param(
            "unencode without effect users[i] := users[i] - 1",
            "users_are_exact",
            marks=pytest.mark.rule("4", "vllm#28558"),
        ),
        pytest.param(
            "publish without guard (position + 1) * BLOCK_SIZE <= computed[r]",
            "published_is_written",
            marks=pytest.mark.rule("6", "vllm#29387", "vllm#43569"),
        ),
        pytest.param(
            "preempt without effect drafts[victim] := 0",
            "waiting_starts_over",
            marks=pytest.mark.rule("1", "vllm#30916"),
        ),
        pytest.param(
            "preempt without guard items_held[victim] == 0",
            "only_running_uses_entries",
            marks=pytest.mark.rule("14", "vllm#31857"),
        ),
        pytest.param(
            "abort without effect until[e] := (last_frame[r] if last_frame[r] <= returned[step]"
            " else issued[step] - [is_open[step]])",
            "touched_is_protected",
            marks=pytest.mark.rule("10", "15", "vllm#32255"),
        ),
        pytest.param(
            "release without guard end <= computed[r] and last_frame[r] <= returned[step]"
            " or decoding[r] and end < known[r]",
            "released_is_behind",
            marks=pytest.mark.rule("14", "vllm#38551"),
        ),
        pytest.param(
            "arrive without guard most + LOOKAHEAD <= TOTAL_BLOCKS * BLOCK_SIZE",
            "fits_an_empty_pool",
            marks=pytest.mark.rule("vllm#39734"),
        ),
        pytest.param(
            "share without guard references[b] == 0 or block_table[r, b] == 0",
            "entries_are_unique",
            marks=pytest.mark.rule("vllm#42571"),
        ),
        pytest.param(
            "schedule without guard not is_deferring[step] or decoding[r]"
            " or computed[r] + 1 >= known[r]",
            "deferring_step_has_no_prefill",
            marks=pytest.mark.rule("8", "vllm#44558"),
        ),
        pytest.param(
            "preempt without effect preemptions[victim] := preemptions[victim] + 1",
            "preemption_is_counted",
            marks=pytest.mark.rule("vllm#44773"),
        ),
        pytest.param(
            "drain without guard until[e] <= returned[step]",
            "touched_is_protected",
            marks=pytest.mark.rule("10", "vllm#45357"),
        ),
        pytest.param(
            "preempt without guard last_frame[victim] <= processed[step]",
            "waiting_wants_no_sample",
            marks=pytest.mark.rule("vllm#48245"),
        ),
        pytest.param(
            "preempt without guard held[victim] >= 1",
            "preemption_pays",
            marks=pytest.mark.rule("2", "vllm#49674"),
        ),
        pytest.param(
            "preempt without guard (held[needy] + free[pool]) * BLOCK_SIZE"
            " < computed[needy] + wanted + LOOKAHEAD",
            "preemption_is_needed",
            marks=pytest.mark.rule("2", "3", "vllm#49674"),
        ),
        pytest.param(
            "admit without guard preempted[step] == 0",
            "preempting_step_admits_nobody",
            marks=pytest.mark.rule("5"),
        ),
        pytest.param(
            "admit without effect waiting[pool] := waiting[pool] - 1",
            "waiting_is_counted",
            marks=pytest.mark.rule("vllm#52693"),
        ),
        pytest.param(
            "park_session without effect running[pool] := running[pool] - 1",
            "running_is_counted",
            marks=pytest.mark.rule("vllm#53130"),
        ),
        pytest.param(
            "preempt without effect computed[victim] := 0",
            "waiting_starts_over",
            marks=pytest.mark.rule("1", "vllm-project/vllm-omni#6053"),
        ),
        pytest.param(
            "drain without effect referenced[pool] := referenced[pool] - [references[b] == 1]",
            "conservation",
            marks=pytest.mark.rule("sgl#35270"),
        ),
        pytest.param(
            "grow without effect held[r] := held[r] + 1",
            "held_is_counted",
            marks=pytest.mark.rule("sgl-jax#982"),
        ),
        pytest.param(
            "schedule without guard tokens <= budget_left[step]",
            "budget_left_minimum",
            marks=pytest.mark.rule("12", "trt#13318"),
        ),
        pytest.param(
            "continue_session without guard tokens >= 0",
            "request_has_a_prompt",
            marks=pytest.mark.rule("ascend#14283"),
        ),
        pytest.param(
            "share without guard computed[r] + BLOCK_SIZE < known[r]",
            "sample_is_in_flight",
            marks=pytest.mark.rule("6", "lmc#2327"),
        ),
        pytest.param(
            "drain without effect fenced[e] := fenced[e] - 1",
            "fenced_is_counted",
            marks=pytest.mark.rule("ai-dynamo/dynamo#13398"),
        ),
        pytest.param(
            "grow without effect content[b] := 0",
            "published_is_written",
            marks=pytest.mark.rule("6", "ovg-project/kvcached#362"),
        ),
        pytest.param(
            "accept without guard count <= computed[r] - known[r] + 1",
            "table_covers_tokens",
            marks=pytest.mark.rule("13"),
        ),
        pytest.param(
            "schedule without guard max(known[r], computed[r] + 1) < limit[r]",
            "scheduled_is_wanted",
            marks=pytest.mark.rule("11"),
        ),
        pytest.param(
            "park_session without effect stale[r] := last_frame[r]",
            "waiting_wants_no_sample",
            marks=pytest.mark.rule("11"),
        ),
        pytest.param(
            "process without guard total(request x: [status[x] == RUNNING and"
            " computed[x] >= known[x] and last_frame[x] <= processed[step] + 1]) == 0",
            "sample_is_in_flight",
            marks=pytest.mark.rule("11"),
        ),
    ],
)
def test_the_fault_of_a_report_is_refuted(fault: str, claim: str) -> None:
    """A row that lacks what keeps a report from happening breaks the claim that names it."""
    row = faulty_row(fault)

    assert f"{row.name} keeps {claim}" in broken_by(row)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        pytest.param(
            "admit", "admit keeps legal_edges", marks=pytest.mark.rule("15", "vllm#52969")
        ),
        pytest.param(
            "admit", "admit keeps finished_absorbs", marks=pytest.mark.rule("sgl-jax#1523")
        ),
        ("accept", "accept keeps finished_absorbs"),
        ("abort", "abort keeps finished_absorbs"),
        pytest.param("abort", "abort lowers requests_to_end", marks=pytest.mark.rule("15")),
        ("finish_stopped", "finish_stopped lowers requests_to_end"),
    ],
)
def test_a_row_that_takes_the_finished_is_refuted(name: str, broken: str) -> None:
    """No row may take a request that has ended: it would come back, or end a second time."""
    row = SCHEDULER.transition[name]
    careless = evolve(row, source=(*row.source, *FINISHED))

    assert broken in broken_by(careless)


@pytest.mark.rule("15", "vllm#53321")
def test_a_parked_request_without_an_exit_is_refuted() -> None:
    """If an abort did not reach parked requests, one of them could wait for ever."""
    deaf = evolve(SCHEDULER.transition["abort"], source=LIVE)

    broken = refuted(check_progress(SCHEDULER.with_transition(deaf)))

    assert any("parked_request_has_an_exit" in name for name in broken)
