"""The search for a run into a fault, and the program that such a run becomes."""

import pytest
from attrs import evolve

from kvproof.spec.declaration import Declaration
from kvproof.spec.scheduler import SCHEDULER
from kvproof.spec.variables import VARIABLES
from kvproof.verify.program import Run, program
from kvproof.verify.search import find_run, up_to_renaming
from kvproof.verify.simulator import Simulator

# Enough by far for what is there to be found; every test ends with the find.
PLENTY = 30.0


def without_guard(row_name: str, position: int) -> Declaration:
    """Return the scheduler with one row that has lost one part of its guard."""
    row = SCHEDULER.transition[row_name]
    guard = (*row.guard[:position], *row.guard[position + 1 :])
    return SCHEDULER.with_transition(evolve(row, guard=guard))


def without_effect(row_name: str, variable: str) -> Declaration:
    """Return the scheduler with one row that leaves one variable as it is."""
    row = SCHEDULER.transition[row_name]
    kept = (item for item in row.effect if getattr(item.cell, "variable", "") != variable)
    return SCHEDULER.with_transition(evolve(row, effect=tuple(kept)))


def calls(text: str) -> list[str]:
    """Return the lines of a program that execute a row."""
    lines = (line for line in text.splitlines() if line.startswith("run."))
    return [line.removeprefix("run.").partition("(")[0] for line in lines]


FAULTS = [
    (
        without_guard("grow", 0),
        "free_is_counted",
        "grow",
        ["arrive", "begin", "admit", "grow", "grow"],
    ),
    (
        without_effect("drain", "free"),
        "conservation",
        "drain",
        ["arrive", "begin", "admit", "grow", "abort", "drain"],
    ),
    # These need encoder slots, and draft tokens.
    (
        without_guard("reuse", 1),
        "items_are_unique",
        "reuse",
        ["arrive", "begin", "admit", "encode", "reuse"],
    ),
    (
        without_effect("accept", "decoding"),
        "drafts_are_tried_once",
        "accept",
        ["arrive", "begin", "admit", "grow", "schedule", "dispatch", "come_back", "accept"],
    ),
    # Only a number that the row should refuse shows this one.
    (without_guard("arrive", 0), "request_has_a_prompt", "arrive", ["arrive"]),
    # This one is about two states, and needs two requests.
    (
        without_guard("preempt", 3),
        "preemption_pays",
        "preempt",
        ["arrive", "arrive", "begin", "admit", "admit", "grow", "preempt"],
    ),
]


@pytest.mark.parametrize(("mutant", "invariant", "row", "steps"), FAULTS)
def test_shortest_run_is_found(
    mutant: Declaration, invariant: str, row: str, steps: list[str]
) -> None:
    """A seeded fault is found, by a run with no step too many that ends with the wrong row."""
    found = find_run(mutant, invariant, row, PLENTY)
    assert found is not None
    assert calls(found) == steps


@pytest.mark.parametrize(("mutant", "invariant", "row", "steps"), FAULTS)
def test_program_fails_at_its_last_line(
    monkeypatch: pytest.MonkeyPatch, mutant: Declaration, invariant: str, row: str, steps: list[str]
) -> None:
    """A found program runs against the wrong declaration and fails where it says, not before."""
    found = find_run(mutant, invariant, row, PLENTY)
    assert found is not None
    monkeypatch.setattr("kvproof.spec.scheduler.SCHEDULER", mutant)
    *lines, last = found.splitlines()
    assert last.endswith(f"# {invariant}")
    scope: dict[str, object] = {}
    exec("\n".join(lines), scope)
    with pytest.raises(AssertionError, match=invariant):
        exec(last, scope)


def test_program_has_numbers_and_flags_by_name() -> None:
    """A program reads well: short lines, instances by position, the rest by name."""
    steps = (("arrive", (0, 1, 1, 3)), ("preempt", (1, 0, 2, 0)), ("accept", (0, 2, 1)))
    constants = {"BLOCK_SIZE": 1, "TOTAL_BLOCKS": 2, "TOKEN_BUDGET": 2, "MAX_RUNNING": 2}
    text = program(Run(SCHEDULER, constants, {"request": 2, "fence": 2}, steps))
    assert text.splitlines() == [
        "from kvproof.spec.scheduler import SCHEDULER",
        "from kvproof.verify.simulator import Simulator",
        "",
        "constants = dict(BLOCK_SIZE=1, TOTAL_BLOCKS=2, TOKEN_BUDGET=2, MAX_RUNNING=2)",
        "instances = dict(request=2, fence=2)",
        "run = Simulator(SCHEDULER, constants, instances)",
        "run.arrive(0, prompt=1, max_tokens=1, most=3)",
        "run.preempt(1, 0, wanted=2, e=0)",
        "run.accept(0, count=2, stop=True)",
    ]


def test_fault_in_the_start_needs_no_step() -> None:
    """An initial state that breaks an invariant is a run without steps."""
    start = tuple(evolve(v, initial=0) if v.name == "free" else v for v in VARIABLES)
    found = find_run(evolve(SCHEDULER, variables=start, checked=False), "conservation")
    assert found is not None
    assert calls(found) == []


def test_only_the_named_row_counts() -> None:
    """A run in which another row makes the fault is not what was asked for."""
    mutant = without_effect("arrive", "waiting")
    assert find_run(mutant, "waiting_is_counted", "arrive", PLENTY) is not None
    assert find_run(mutant, "waiting_is_counted", "retire", seconds=0.05) is None


def test_search_gives_up_when_its_time_is_over() -> None:
    """Nothing is found where nothing is wrong, and the search still ends."""
    assert find_run(SCHEDULER, "conservation", "drain", seconds=0.1) is None


def test_states_that_differ_in_names_are_one() -> None:
    """Requests, blocks and fences can change names without making a new state."""
    least = {constant.name: constant.minimum for constant in SCHEDULER.constants}
    constants = {**least, "TOTAL_BLOCKS": 3, "TOKEN_BUDGET": 2, "MAX_RUNNING": 2}
    states = []
    for owner, other, block_id in ((0, 1, 1), (1, 0, 3), (1, 0, 2)):
        run = Simulator(SCHEDULER, constants, {"request": 2, "fence": 2})
        run.arrive(owner, prompt=2, max_tokens=1, most=2)
        run.arrive(other, prompt=1, max_tokens=1, most=1)
        run.begin(throttled=False)
        run.admit(owner, shared=0)
        run.grow(owner, block_id)
        states.append(run.snapshot())
    canonical = up_to_renaming(SCHEDULER, run.layout)
    assert len(set(states)) == 3
    assert len({canonical(state) for state in states}) == 1
    run.grow(owner, 1)
    assert canonical(run.snapshot()) != canonical(states[0])
