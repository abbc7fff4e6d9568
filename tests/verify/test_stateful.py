"""The machine finds nothing wrong with the runtime, and finds what is planted in it."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from attrs import evolve
from hypothesis.strategies import SearchStrategy

from kvproof.core import State
from kvproof.core import rows as core_rows
from kvproof.core.arrays import Integers
from kvproof.runtime import (
    BrokenInvariant,
    CallerError,
    Frozen,
    Profile,
    Request,
    RunningView,
    SchedulerConfig,
    StepOutput,
)
from kvproof.runtime import accounting as accounting_module
from kvproof.runtime import encoder_cache as encoder_cache_module
from kvproof.runtime import holders as holders_module
from kvproof.runtime import running_pass as running_pass_module
from kvproof.runtime import scheduler as scheduler_module
from kvproof.runtime import waiting_pass as waiting_pass_module
from kvproof.runtime.block_keys import BlockKeys, Keys
from kvproof.runtime.books import Books
from kvproof.runtime.encoder_cache import EncoderCache
from kvproof.runtime.explanation import Outlook
from kvproof.runtime.fences import Fences
from kvproof.runtime.free_queue import FreeQueue
from kvproof.runtime.look import Look
from kvproof.runtime.slot_stamps import StaleRead
from kvproof.runtime.step_buffers import StepBuffers
from kvproof.runtime.step_plan import StepPlan
from kvproof.runtime.waiting_pass import Admission
from kvproof.runtime.waiting_queue import FirstComeQueue
from kvproof.verify import workload
from kvproof.verify.plain_scheduler import PlainScheduler
from kvproof.verify.recorded_run import Disagreement, RecordedRun, program_of
from kvproof.verify.stateful import run_fuzz, summary
from kvproof.verify.step_claims import StepClaims
from kvproof.verify.victim_rule import VictimRule
from kvproof.verify.watched_scheduler import WatchedScheduler

Plant = Callable[[pytest.MonkeyPatch], None]
PROGRAM_LINES_MAX = 25
EVENTS = (
    "preempted",
    "resumed",
    "undone in the step",
    "finished by stop",
    "prefix hits",
    "resumed on a hit",
    "draft tokens tried",
    "draft tokens accepted",
    "preempted with draft tokens",
    "items encoded",
    "items evicted",
    "steps that defer prefills",
    "steps ahead of others",
    "tokens not known yet",
    "samples dropped",
    "steps that wait for a victim",
)
OF_LOADS = (Outlook.LOADING, Outlook.LOADS)
ABORTED = (
    "WAITING",
    "RUNNING",
    "RUNNING in flight",
    "PREEMPTED",
    "WAITING_FOR_GRAMMAR",
    "WAITING_FOR_STREAMING",
    "not live",
)


# --- Faults ---------------------------------------------------------------------------------------


def fence_forgets_a_block(patch: pytest.MonkeyPatch) -> None:
    """Let a fence of several blocks give back all but one."""
    drain_one = Fences._drain_one

    def forgetful(fences: Fences, fence: int) -> None:
        fenced = fences._state.fence.fenced
        fenced[fence] = max(1, fenced[fence] - 1) if fenced[fence] else 0
        drain_one(fences, fence)

    patch.setattr(Fences, "_drain_one", forgetful)


def queue_loses_a_block(patch: pytest.MonkeyPatch) -> None:
    """Let the free queue drop the last of the blocks that come back."""
    put_first = FreeQueue.put_first
    patch.setattr(FreeQueue, "put_first", lambda queue, blocks: put_first(queue, blocks[:-1]))


def victim_waits(patch: pytest.MonkeyPatch) -> None:
    """Let the policy choose a row that nobody runs in."""
    patch.setattr(VictimRule, "__call__", lambda _, running: int(running.rows.max()) + 1)


def victim_stays_scheduled(patch: pytest.MonkeyPatch) -> None:
    """Let a preempted request keep its tokens in the open step."""
    patch.setattr(running_pass_module, "_unschedule", lambda _, plan, victim: plan.forget(victim))


def victim_stays_in_the_plan(patch: pytest.MonkeyPatch) -> None:
    """Let the output of a step name a request that was preempted in it."""
    patch.setattr(StepPlan, "forget", lambda plan, row: None)


def block_goes_to_another_table(patch: pytest.MonkeyPatch) -> None:
    """Let the tensors record each new block for the next request of the batch."""
    places = StepBuffers._places

    def shifted(buffers: StepBuffers, output: StepOutput) -> Integers:
        return np.asarray((places(buffers, output) + 1) % output.num_requests)

    patch.setattr(StepBuffers, "_places", shifted)


def tables_are_read_late(patch: pytest.MonkeyPatch) -> None:
    """Let the tensors of a step be made from tables that an abort has emptied."""
    patch.setattr(StepBuffers, "fill_current", lambda buffers: None)


def last_come_is_first_served(patch: pytest.MonkeyPatch) -> None:
    """Let requests be admitted from the end of the queue."""
    patch.setattr(FirstComeQueue, "first", lambda queue: queue._rows[-1])


def nobody_is_admitted(patch: pytest.MonkeyPatch) -> None:
    """Let requests wait for ever, and let the plain scheduler find that right."""
    patch.setattr(scheduler_module, "schedule_waiting", lambda books, plan: None)
    patch.setattr(PlainScheduler, "_visit_waiting", lambda plain, step: None)


def idle_hit_counts_as_free(patch: pytest.MonkeyPatch) -> None:
    """Let hits that are idle in the free queue count as blocks that somebody holds already."""

    def careless(books: Books, plan: StepPlan, admission: Admission) -> bool:
        hits = len(admission.start.hits)
        fits = waiting_pass_module._admission_demand(books, admission, hits).fits
        return fits and core_rows.admit(books.state, admission.start.row, hits)

    patch.setattr(waiting_pass_module, "_admit", careless)


def victim_keeps_its_drafts(patch: pytest.MonkeyPatch) -> None:
    """Let a preempted request come back with the draft tokens that it had."""
    preempt = core_rows.preempt

    def forgetful(state: State, victim: int, needy: int, wanted: int, fence: int) -> bool:
        drafts = state.request.cells.drafts[victim]
        done = preempt(state, victim, needy, wanted, fence)
        state.request.cells.drafts[victim] = drafts
        return done

    patch.setattr(core_rows, "preempt", forgetful)


def entry_is_released_too_early(patch: pytest.MonkeyPatch) -> None:
    """Let a request give up an encoder entry when it has computed the first token of the item."""

    def hasty(cache: EncoderCache, row: int, computed: int) -> None:
        record = cache._rows.get(row)
        used = dict(record.used) if record else {}
        for place, entry in used.items():
            if record and record.items[place].offset < computed:
                cache._let_go(row, entry)
                del record.used[place]

    patch.setattr(EncoderCache, "release", hasty)


def entry_is_never_released(patch: pytest.MonkeyPatch) -> None:
    """Let a request keep each encoder entry until it ends, so that its next item finds no room."""
    patch.setattr(EncoderCache, "release", lambda cache, row, computed: None)


def half_read_repeat_is_dropped(patch: pytest.MonkeyPatch) -> None:
    """Let a request give up an entry in the midst of the second place of its item."""
    patch.setattr(encoder_cache_module, "_half_read", lambda record, place, computed: None)


def victim_leaves_an_entry(patch: pytest.MonkeyPatch) -> None:
    """Let a victim of the open step leave behind what the encoder was to compute for it."""
    patch.setattr(EncoderCache, "undo", lambda cache, row: cache._computing.pop(row, None))


def least_urgent_is_spared(patch: pytest.MonkeyPatch) -> None:
    """Let the most urgent request be the victim."""

    def most_urgent(running: RunningView) -> int:
        return int(running.rows[np.lexsort((running.arrival_time, running.priority))[0]])

    patch.setattr(scheduler_module, "least_urgent", most_urgent)


def hash_ignores_the_salt(patch: pytest.MonkeyPatch) -> None:
    """Let requests with different salts share blocks."""
    of = BlockKeys.of

    def unsalted(keys: BlockKeys, first: int, last: int, block_size: int) -> list[Keys]:
        return of(BlockKeys("", keys.items), first, last, block_size)

    patch.setattr(BlockKeys, "of", unsalted)


def hash_ignores_the_items(patch: pytest.MonkeyPatch) -> None:
    """Let requests with different items at the same tokens share blocks."""
    of = BlockKeys.of

    def blind(keys: BlockKeys, first: int, last: int, block_size: int) -> list[Keys]:
        return of(BlockKeys(keys.salt, ()), first, last, block_size)

    patch.setattr(BlockKeys, "of", blind)


def blocks_come_back_early(patch: pytest.MonkeyPatch) -> None:
    """Let a fence give its blocks back while a step in flight may still write them."""
    init = Fences.__init__

    def hasty(fences: Fences, *args: object, **options: object) -> None:
        init(fences, *args, **options | {"early": True})  # type: ignore[arg-type]

    patch.setattr(Fences, "__init__", hasty)


def entry_is_released_ahead(patch: pytest.MonkeyPatch) -> None:
    """Let an entry be given up for tokens that a step in flight is still to compute."""
    patch.setattr(accounting_module, "_settled", lambda b, row: b.state.request.computed[row])


def flying_victim_is_preempted(patch: pytest.MonkeyPatch) -> None:
    """Let a victim be preempted although steps in flight touch its blocks."""
    patch.setattr(Books, "is_in_flight", lambda books, row: False)


def left_block_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Let nobody be told of a block that was taken in a step that its request had to leave."""
    patch.setattr(running_pass_module, "leave_untold", lambda books, plan, row: None)


def throttle_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """Let steps prefill that were asked to leave that for later."""
    begin = core_rows.begin
    patch.setattr(core_rows, "begin", lambda state, _: begin(state, False))


Configurations = SearchStrategy[SchedulerConfig]


def urgent(configurations: Configurations) -> Configurations:
    """Return the same by priority, where a victim has often been scheduled already."""
    return configurations.map(lambda config: evolve(config, policy="priority"))


# Only those that shrink within seconds are shrunk here.
FAULTS: list[tuple[Plant, Configurations, type[Exception], str, bool]] = [
    (fence_forgets_a_block, workload.crowded, BrokenInvariant, "references_are_exact", True),
    (queue_loses_a_block, workload.crowded, BrokenInvariant, "free queue and the core", True),
    (victim_waits, workload.crowded, CallerError, "choose_victim returned", False),
    (last_come_is_first_served, workload.crowded, Disagreement, "output.req_ids", False),
    (nobody_is_admitted, workload.crowded, Frozen, "a step changed nothing", True),
    (victim_stays_scheduled, workload.crowded, BrokenInvariant, "may not be preempted", False),
    (victim_stays_in_the_plan, workload.crowded, Disagreement, "output.(total|req_ids)", False),
    (
        block_goes_to_another_table,
        workload.crowded,
        Exception,
        "would read slot|null block|two tokens",
        False,
    ),
    (tables_are_read_late, workload.crowded, ValueError, "null block", False),
    (least_urgent_is_spared, workload.crowded, BrokenInvariant, "may not be preempted", False),
    (
        throttle_is_ignored,
        workload.crowded,
        Disagreement,
        "defers prefills|is_capacity_bound",
        False,
    ),
    (idle_hit_counts_as_free, workload.sharing, Exception, "cannot be dispatched|only", False),
    (hash_ignores_the_salt, workload.sharing, StaleRead, "would read slot", False),
    (hash_ignores_the_items, workload.everything, StaleRead, "would read slot", False),
    (victim_keeps_its_drafts, workload.drafting, BrokenInvariant, "waiting_starts_over", False),
    (entry_is_released_too_early, workload.encoding, Disagreement, "mm_hashes", False),
    (victim_leaves_an_entry, urgent(workload.encoding), Disagreement, "mm_hashes", False),
    (entry_is_never_released, workload.encoding, Frozen, "encode: .* embeddings? needed", False),
    (half_read_repeat_is_dropped, workload.cramped, Disagreement, "mm_hashes", False),
    (blocks_come_back_early, workload.in_flight, Disagreement, "fenced", False),
    (entry_is_released_ahead, workload.in_flight, BrokenInvariant, "may not release", False),
    (flying_victim_is_preempted, workload.in_flight, BrokenInvariant, "not be preempted", False),
    (left_block_is_forgotten, urgent(workload.in_flight), Disagreement, "block_ids", False),
]


# Faults whose programs end with a claim that takes for granted what the fault did before it.
HISTORICAL = (
    entry_is_never_released,
    throttle_is_ignored,
    entry_is_released_too_early,
    half_read_repeat_is_dropped,
    victim_leaves_an_entry,
)


def run(program: str) -> None:
    """Execute a program as a user would who has pasted it into a file."""
    exec(compile(program, "program", "exec"), {})


# --- The machine ----------------------------------------------------------------------------------


def test_machine_finds_nothing_and_reaches_everything() -> None:
    """Long random runs break no claim, and each kind of call and of event occurs in them."""
    counts: Counter[str] = Counter()
    for configurations in (
        workload.configurations,
        workload.crowded,
        workload.in_flight,
        workload.drafting,
        workload.encoding,
        workload.cramped,
    ):
        counts += run_fuzz(max_examples=25, steps=30, seed=3, configurations=configurations)

    for name in ("add", "step", "run", "dispatch", "account", "abort", "grammar ready"):
        assert counts[f"call {name}"] >= 50, name
    for name in ("propose", "continue session", "reset prefix cache"):
        assert counts[f"call {name}"] >= 5, name
    for name in EVENTS:
        assert counts[name] >= 5, name
    for state in ABORTED:
        assert counts[f"aborted while {state}"] >= 1, state


@pytest.mark.parametrize(
    ("plant", "configurations", "kind", "words", "shrink"),
    FAULTS,
    ids=[plant.__name__ for plant, *_ in FAULTS],
)
def test_planted_fault_is_found_with_a_program(
    plant: Plant,
    configurations: Configurations,
    kind: type[Exception],
    words: str,
    *,
    shrink: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fault is found; the program attached to it fails, and only while the fault is there."""
    plant(monkeypatch)
    with pytest.raises(kind, match=words) as found:
        run_fuzz(
            max_examples=600,
            steps=10 if shrink else 30,
            seed=0,
            shrink=shrink,
            configurations=configurations,
        )

    program = program_of(found.value)
    assert program is not None
    assert not shrink or len(program.splitlines()) <= PROGRAM_LINES_MAX, program
    with pytest.raises(AssertionError if kind is Disagreement else kind):
        run(program)
    monkeypatch.undo()
    if plant not in HISTORICAL:
        run(program)


def test_publishing_before_content_is_written_is_found() -> None:
    """Under the rule of vLLM 0.25.1 a request comes to blocks that nobody wrote (vllm#43569).

    The program says which rule it is, and passes under the default.
    """
    profile = Profile(publishes_at_allocation=True)
    with pytest.raises(StaleRead, match="would read slot") as found:
        run_fuzz(
            max_examples=600,
            steps=30,
            seed=8,
            shrink=False,
            profile=profile,
            configurations=workload.chunked,
        )

    program = program_of(found.value)
    assert program is not None
    rule = "profile=Profile(publishes_at_allocation=True)"
    assert rule in program
    with pytest.raises(StaleRead):
        run(program)
    run(program.replace(rule, "profile=Profile()"))


def test_explanations_hold_whatever_happens() -> None:
    """Explaining changes nothing, holders are named exactly, and each step is as it was foretold.

    It takes some seconds, for every request is explained after each call.
    """
    counts: Counter[str] = Counter()
    for configurations in (
        workload.crowded,
        workload.in_flight,
        workload.drafting,
        workload.encoding,
        workload.cramped,
    ):
        counts += run_fuzz(
            max_examples=4, steps=15, seed=5, configurations=configurations, explains=True
        )

    missing = [o for o in Outlook if not counts[f"explained: {o}"] and o not in OF_LOADS]
    assert missing == []


def test_an_explanation_that_leaves_a_trace_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial on the books themselves, and not on a copy, changes the state and is found out."""
    monkeypatch.setattr(scheduler_module, "copy_of", lambda books: books)
    with pytest.raises(AssertionError, match=r"explain changed .*step\.is_open"):
        run_fuzz(max_examples=4, steps=15, seed=5, shrink=False, explains=True)


def test_a_forecast_that_does_not_come_true_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever foretells a step by other rules than the passes have is found out by the step."""
    monkeypatch.setattr(Look, "tokens", lambda look, row: 1)
    with pytest.raises(AssertionError, match="foretold was"):
        run_fuzz(max_examples=4, steps=15, seed=5, shrink=False, explains=True)


def test_a_holder_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has blocks and is not named as a holder is missed."""
    named = holders_module.holders_of_blocks
    monkeypatch.setattr(
        holders_module, "holders_of_blocks", lambda books, steps: list(named(books, steps))[1:]
    )
    with pytest.raises(AssertionError, match=r"holders .*, expected"):
        run_fuzz(
            max_examples=20,
            steps=15,
            seed=5,
            shrink=False,
            configurations=workload.crowded,
            explains=True,
        )


def test_same_seed_makes_the_same_calls() -> None:
    """A run can be repeated from its seed."""
    first, second = (run_fuzz(max_examples=5, steps=10, seed=7) for _ in range(2))

    assert first == second
    assert first["call add"] > 0


def test_summary_names_what_happened_most_often_first() -> None:
    """Counts are shown as aligned lines."""
    assert (
        summary(Counter({"call add": 2, "steps": 1_000}))
        == "steps        1,000\ncall add         2"
    )


# --- Its parts ------------------------------------------------------------------------------------


def crowded(keep_claims: bool) -> WatchedScheduler:
    """Return a scheduler after a run with a preemption, an abort in flight and a late sample."""
    config = SchedulerConfig(num_blocks=5, block_size=2, max_num_seqs=3, max_num_batched_tokens=6)
    watched = WatchedScheduler(config, VictimRule(0), keep_claims=keep_claims)
    watched.add(Request("a", [1, 2], 5, {7}))
    watched.add(Request("b", [3, 4], 5))
    watched.add(Request("c", [5], 2, {8, 9}))
    for token in (0, 1, 2):
        watched.dispatch([token])
        watched.compute(tensors=token != 1)
        watched.account(by_name=token == 0)
    watched.dispatch([7])
    watched.abort(["b", "nobody"])
    watched.compute()
    watched.account()
    watched.drain(0)
    watched.check_end()
    return watched


def test_every_claim_is_a_piece_of_python_that_holds() -> None:
    """A recorded run with all of its claims is a program that passes."""
    watched = crowded(keep_claims=True)
    program = watched.recorded.program()

    assert watched.counts["preempted"] >= 1
    assert program.count("assert ") > 100
    run(program)


def test_claims_are_left_out_unless_asked_for() -> None:
    """A recorded run is the calls alone."""
    assert "assert" not in crowded(keep_claims=False).recorded.program()


def test_failed_claim_ends_the_program() -> None:
    """What was expected is the last line, as an assertion."""
    recorded = RecordedRun(SchedulerConfig(num_blocks=4), VictimRule())
    recorded.call("output = scheduler.schedule()")
    with pytest.raises(Disagreement, match=r"expected output.step == 2; saw 1") as fault:
        recorded.equal("output.step", 1, 2)

    assert recorded.program(fault.value).splitlines()[-2:] == [
        "output = scheduler.schedule()",
        "assert output.step == 2",
    ]


def test_drain_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that never gets on is found out after as many steps as there are tokens."""
    nobody_is_admitted(monkeypatch)
    monkeypatch.setattr(StepClaims, "_check_somebody_gets_on", lambda claims: None)
    monkeypatch.setattr(scheduler_module, "is_freeze", lambda books, plan: False)
    watched = WatchedScheduler(SchedulerConfig(num_blocks=4))
    watched.add(Request("a", [1, 2], 3))
    with pytest.raises(Disagreement, match="has_unfinished_requests"):
        watched.drain(0)

    assert watched.counts["steps"] == 2 + 3 + 1


def test_victim_rule_prints_as_itself() -> None:
    """A victim policy can be read back from a program."""
    rule = VictimRule(5)

    assert eval(repr(rule)) == rule
    assert [rule.position(count) for count in (1, 2, 3, 6)] == [0, 1, 2, 5]
    rows = np.array([4, 2, 9])
    assert rule(RunningView(rows, rows, rows.astype(float), rows)) == 9
