"""The machine finds nothing wrong with the runtime, and finds what is planted in it."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from kvproof.core.arrays import Integers
from kvproof.runtime import BrokenInvariant, CallerError, Request, SchedulerConfig, StepOutput
from kvproof.runtime import running_pass as running_pass_module
from kvproof.runtime import scheduler as scheduler_module
from kvproof.runtime.books import Books
from kvproof.runtime.fences import Fences
from kvproof.runtime.free_queue import FreeQueue
from kvproof.runtime.step_buffers import StepBuffers
from kvproof.runtime.step_plan import StepPlan
from kvproof.runtime.waiting_pass import schedule_waiting
from kvproof.verify.plain_scheduler import PlainScheduler
from kvproof.verify.recorded_run import Disagreement, RecordedRun, program_of
from kvproof.verify.stateful import run_fuzz, summary
from kvproof.verify.victim_rule import VictimRule
from kvproof.verify.watched_scheduler import WatchedScheduler

Plant = Callable[[pytest.MonkeyPatch], None]
PROGRAM_LINES_MAX = 25


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
    patch.setattr(VictimRule, "__call__", lambda _, running: int(running.max()) + 1)


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

    def backwards(books: Books, plan: StepPlan) -> None:
        books.waiting.reverse()
        schedule_waiting(books, plan)
        books.waiting.reverse()

    patch.setattr(scheduler_module, "schedule_waiting", backwards)


def nobody_is_admitted(patch: pytest.MonkeyPatch) -> None:
    """Let requests wait for ever, and let the plain scheduler find that right."""
    patch.setattr(scheduler_module, "schedule_waiting", lambda books, plan: None)
    patch.setattr(PlainScheduler, "_visit_waiting", lambda plain, step: None)


# Only those that shrink within seconds are shrunk here.
FAULTS: list[tuple[Plant, type[Exception], str, bool]] = [
    (fence_forgets_a_block, BrokenInvariant, "references_are_exact", True),
    (queue_loses_a_block, BrokenInvariant, "the free queue and the core disagree", True),
    (victim_waits, CallerError, "choose_victim returned", True),
    (last_come_is_first_served, Disagreement, "num_scheduled_tokens.items", True),
    (nobody_is_admitted, Disagreement, "has_unfinished_requests", True),
    (victim_stays_scheduled, BrokenInvariant, "may not be preempted", False),
    (victim_stays_in_the_plan, Disagreement, "total_num_scheduled_tokens|output.req_ids", False),
    (block_goes_to_another_table, Exception, "would read slot|null block|two tokens", False),
    (tables_are_read_late, ValueError, "null block", False),
]


def run(program: str) -> None:
    """Execute a program as a user would who has pasted it into a file."""
    exec(compile(program, "program", "exec"), {})


# --- The machine ----------------------------------------------------------------------------------


def test_machine_finds_nothing_and_reaches_everything() -> None:
    """Long random runs break no claim, and each kind of call and of event occurs in them."""
    counts = run_fuzz(max_examples=60, steps=40, seed=1)

    for name in ("add", "step", "dispatch", "account", "abort"):
        assert counts[f"call {name}"] >= 50, name
    for name in ("preempted", "resumed", "undone in the step", "finished by stop"):
        assert counts[name] >= 5, name
    for state in ("WAITING", "RUNNING", "RUNNING in flight", "PREEMPTED", "not live"):
        assert counts[f"aborted while {state}"] >= 1, state


@pytest.mark.parametrize(
    ("plant", "kind", "words", "shrink"), FAULTS, ids=[plant.__name__ for plant, *_ in FAULTS]
)
def test_planted_fault_is_found_with_a_program(
    plant: Plant,
    kind: type[Exception],
    words: str,
    shrink: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fault is found; the program attached to it fails, and only while the fault is there."""
    plant(monkeypatch)
    with pytest.raises(kind, match=words) as found:
        run_fuzz(max_examples=400, steps=10 if shrink else 30, seed=0, shrink=shrink)

    program = program_of(found.value)
    assert program is not None
    assert not shrink or len(program.splitlines()) <= PROGRAM_LINES_MAX, program
    with pytest.raises(AssertionError if kind is Disagreement else kind):
        run(program)
    monkeypatch.undo()
    if plant is not nobody_is_admitted:  # its program says only that all should be over by now
        run(program)


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
        watched.dispatch()
        watched.compute(tensors=token != 1)
        watched.account([token], by_name=token == 0)
    watched.dispatch()
    watched.abort(["b", "nobody"])
    watched.compute()
    watched.account([7])
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
    assert rule(np.array([4, 2, 9])) == 9
