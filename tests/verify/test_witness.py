"""Witnesses: a declared run is executed, and what goes wrong in it is named."""

from attrs import evolve

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import Number
from kvproof.spec.rows import Variable
from kvproof.spec.scheduler import SCHEDULER
from kvproof.spec.statuses import RUNNING, WAITING
from kvproof.spec.variables import VARIABLES, free, held
from kvproof.spec.witnesses import first
from kvproof.verify.verdict import Counterexample, Method, Verdict
from kvproof.verify.witness import check_witnesses, instances_of


def faults(declaration: Declaration) -> dict[str, Counterexample]:
    """Return the counterexample of each witness that fails, by the witness's name."""
    results = check_witnesses(declaration)
    found = {result.name.split()[0]: result.counterexample for result in results}
    return {name: fault for name, fault in found.items() if fault is not None}


def without_effect(row_name: str, variable: Variable[Number]) -> Declaration:
    """Return the scheduler with one row that leaves one variable as it is."""
    row = SCHEDULER.transition[row_name]
    kept = (item for item in row.effect if getattr(item.cell, "variable", "") != variable.name)
    return SCHEDULER.with_transition(evolve(row, effect=tuple(kept)))


def test_every_declared_run_is_possible() -> None:
    """Each witness of the scheduler runs, keeps every invariant, and ends as it says."""
    results = check_witnesses(SCHEDULER)
    assert len(results) == len(SCHEDULER.witnesses)
    assert {result.verdict for result in results} == {Verdict.PROVED}
    assert {result.method for result in results} == {Method.WITNESS}


def test_refused_step_is_named() -> None:
    """Where a row may no longer happen, the step, the false part of the guard and the run show."""
    row = evolve(SCHEDULER.transition["admit"], source=(WAITING,))
    found = faults(SCHEDULER.with_transition(row))
    assert list(found) == [
        "a_preempted_request_is_admitted_again",
        "a_preempted_request_is_not_loaded",
    ]
    fault = found["a_preempted_request_is_admitted_again"]
    assert fault.row == "admit"
    assert fault.explanation.startswith("step 34 of a_preempted_request_is_admitted_again: ")
    assert "status[r] == WAITING is false; status[1] = PREEMPTED" in fault.explanation
    assert fault.program.endswith("run.admit(1, shared=0)\n")


def test_broken_invariant_is_named() -> None:
    """A run that loses a block is refuted at the step that loses it, by the law it breaks."""
    fault = faults(without_effect("drain", free))["one_request_from_arrival_to_its_limit"]
    assert fault.explanation.startswith("step 11, drain, breaks conservation: ")
    assert fault.program.splitlines()[-3:] == [
        "run.drain(0, 1)",
        "broken = run.violations()",
        "assert not broken, broken  # conservation",
    ]


def test_broken_initial_state_is_named() -> None:
    """A start that breaks an invariant is refuted before the first step."""
    start = tuple(evolve(v, initial=0) if v.name == "free" else v for v in VARIABLES)
    found = faults(evolve(SCHEDULER, variables=start, checked=False))
    assert len(found) == len(SCHEDULER.witnesses)
    fault = found["a_stop_token_ends_a_request"]
    assert fault.explanation.startswith("the initial state breaks conservation: ")


def test_wrong_end_shows_what_there_was() -> None:
    """A run that ends otherwise than it says is refuted, with the cells that its end reads."""
    witness = evolve(SCHEDULER.witnesses[0], ends=held[first] == 1)
    found = faults(evolve(SCHEDULER, witnesses=(witness,), checked=False))
    explanation = found[witness.name].explanation
    assert explanation == f"{witness.name} does not end with held[0] == 1; held[0] = 0"


def test_wrong_number_of_arguments_is_reported() -> None:
    """A step that gives a row too few arguments is refuted with what the row takes."""
    witness = evolve(SCHEDULER.witnesses[0], steps=(("arrive", 0, 2, 1, 2), ("grow", 0)))
    found = faults(evolve(SCHEDULER, witnesses=(witness,), checked=False))
    assert "grow takes r, b" in found[witness.name].explanation


def test_instances_are_as_many_as_are_mentioned() -> None:
    """A witness has room for the highest instance that a step or its end speaks of."""
    witness = evolve(SCHEDULER.witnesses[0], steps=(("finish_length", 2, 1),), ends=None)
    assert instances_of(SCHEDULER, witness) == {"request": 3, "fence": 2, "item": 1}
    at_end = evolve(
        witness, steps=(("begin", False), ("evict", 4)), ends=SCHEDULER.state[first] == RUNNING
    )
    assert instances_of(SCHEDULER, at_end) == {"request": 1, "fence": 1, "item": 5}


def test_only_an_unsafe_run_may_break_an_invariant() -> None:
    """A run of the reference's own rows breaks what they say, so it is refuted unless unsafe."""
    names = {witness.name: witness for witness in SCHEDULER.witnesses if witness.unsafe}
    reference = names["the_reference_admits_and_publishes_early"]

    safe = evolve(SCHEDULER, witnesses=(evolve(reference, unsafe=False),), checked=False)

    explanation = faults(safe)[reference.name].explanation
    assert explanation.startswith("step 1, arrive_unchecked, breaks fits_an_empty_pool: ")
    assert faults(evolve(SCHEDULER, witnesses=(reference,), checked=False)) == {}
