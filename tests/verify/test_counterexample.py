"""Counterexamples: what a reader sees of a refuted obligation."""

from io import StringIO

from attrs import evolve
from rich.console import Console

from kvproof.spec.declaration import Declaration
from kvproof.spec.scheduler import SCHEDULER
from kvproof.spec.variables import VARIABLES
from kvproof.verify.counterexample import UNREACHABLE, render, with_program
from kvproof.verify.induction import check_consequences, check_initial, check_row
from kvproof.verify.verdict import Counterexample, Result, Verdict


def refuted(declaration: Declaration, results: list[Result], name: str) -> Counterexample:
    """Return the counterexample of the refuted obligation with this name."""
    result = next(result for result in results if result.name == name)
    assert result.verdict is Verdict.REFUTED
    assert result.counterexample is not None
    return result.counterexample


def grow_that_takes_any_block() -> Declaration:
    """Return the scheduler whose `grow` no longer asks whether the block is free."""
    row = SCHEDULER.transition["grow"]
    return SCHEDULER.with_transition(evolve(row, guard=row.guard[1:]))


def results_of(declaration: Declaration, row_name: str) -> list[Result]:
    """Return what becomes of the obligations of one row."""
    return check_row(declaration, declaration.complete_transitions[row_name])


def without_invariant(name: str) -> Declaration:
    """Return the scheduler without one of its invariants."""
    kept = tuple(row for row in SCHEDULER.invariants if row.name != name)
    return evolve(SCHEDULER, invariants=kept, checked=False)


def shown(result: Result, declaration: Declaration) -> str:
    """Return a rendered result as the plain text of a terminal."""
    console = Console(file=StringIO(), width=100)
    console.print(render(result, declaration), markup=False, highlight=False)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_counterexample_names_the_call_and_the_law() -> None:
    """A refuted step says which row broke which sentence, for which arguments."""
    mutant = grow_that_takes_any_block()
    found = refuted(mutant, results_of(mutant, "grow"), "grow keeps free_is_counted")
    sentence = "The stored number of free blocks is the length of the free queue."
    assert found.explanation == f"grow breaks free_is_counted: {sentence}"
    assert found.row == "grow"
    assert found.arguments == (("r", "request r"), ("b", "block b"))


def test_counterexample_has_only_the_cells_that_matter() -> None:
    """Every cell shown is read by the broken invariant or changed by the row."""
    mutant = grow_that_takes_any_block()
    found = refuted(mutant, results_of(mutant, "grow"), "grow keeps free_is_counted")
    before, after = dict(found.before), dict(found.after)
    assert list(before) == list(after)
    read = {"free[pool]", "queued[b]", "queued[other]", "all other blocks: [queued[•]]"}
    assert {cell for cell in before if before[cell] == after[cell]} <= read
    assert before["queued[b]"] == "false"
    assert int(after["free[pool]"]) == int(before["free[pool]"]) - 1
    assert int(after["held[r]"]) == int(before["held[r]"]) + 1


def test_members_are_shown_by_name_and_numbers_as_arguments() -> None:
    """A state is shown as RUNNING, and a number that the row was called with by its value."""
    row = SCHEDULER.transition["preempt"]
    mutant = SCHEDULER.with_transition(evolve(row, guard=(*row.guard[:3], *row.guard[4:])))
    found = refuted(mutant, results_of(mutant, "preempt"), "preempt keeps preemption_pays")
    assert dict(found.before)["status[victim]"] == "RUNNING"
    assert dict(found.after)["status[victim]"] == "PREEMPTED"
    assert dict(found.before)["held[victim]"] == "0"
    assert dict(found.arguments)["wanted"].isdecimal()


def test_reachable_fault_comes_with_a_program() -> None:
    """Where a run into the fault exists, it replaces the remark that none is known."""
    mutant = grow_that_takes_any_block()
    result = next(r for r in results_of(mutant, "grow") if r.name == "grow keeps free_is_counted")
    found = with_program(mutant, result, seconds=10.0).counterexample
    assert found is not None
    assert UNREACHABLE not in found.explanation
    assert found.program.endswith("# free_is_counted\n")


def test_unreachable_state_says_so() -> None:
    """A row that is right, in a state that a missing invariant would rule out, is not accused."""
    poorer = without_invariant("only_running_holds")
    name = "retire keeps table_is_no_longer_than_needed"
    result = next(r for r in results_of(poorer, "retire") if r.name == name)
    found = with_program(poorer, result, seconds=0.1).counterexample
    assert found is not None
    assert found.explanation.endswith(UNREACHABLE)
    assert found.program == ""


def test_search_leaves_other_results_alone() -> None:
    """What is proved, or has a program already, is returned as it is."""
    proved = results_of(SCHEDULER, "retire")
    assert all(with_program(SCHEDULER, result) is result for result in proved)
    ready = Counterexample("", program="run.begin()\n")
    result = evolve(proved[1], verdict=Verdict.REFUTED, counterexample=ready)
    assert with_program(SCHEDULER, result) is result


def test_broken_start_shows_the_initial_values() -> None:
    """An initial state that breaks an invariant is shown with what it starts from."""
    start = tuple(evolve(v, initial=0) if v.name == "free" else v for v in VARIABLES)
    mutant = evolve(SCHEDULER, variables=start, checked=False)
    found = refuted(mutant, check_initial(mutant), "start has conservation")
    assert found.explanation.startswith("the initial state breaks conservation: ")
    cells = dict(found.before)
    assert (cells["free[pool]"], cells["referenced[pool]"]) == ("0", "0")
    assert int(cells["TOTAL_BLOCKS"]) >= 1
    assert found.after == ()


def test_start_is_never_called_unreachable() -> None:
    """The initial state is reachable, whether or not the search tries the sizes at fault."""
    start = tuple(evolve(v, initial=0) if v.name == "free" else v for v in VARIABLES)
    mutant = evolve(SCHEDULER, variables=start, checked=False)
    result = next(r for r in check_initial(mutant) if r.name == "start has conservation")
    for declaration in (mutant, SCHEDULER):
        found = with_program(declaration, result, seconds=0.1).counterexample
        assert found is not None
        assert UNREACHABLE not in found.explanation


def test_consequence_that_does_not_follow_shows_the_state() -> None:
    """A consequence that nothing implies any more is shown with a state that breaks it."""
    poorer = without_invariant("touched_is_protected")
    found = refuted(poorer, check_consequences(poorer), "quiet_before_reuse follows")
    cells = dict(found.before)
    assert cells["queued[other]"] == "true"
    assert int(cells["touched[other, other]"]) > int(cells["returned[step]"])


def test_rendered_block_has_everything() -> None:
    """A rendered counterexample has the sentence, the call, the changed cells and the program."""
    mutant = grow_that_takes_any_block()
    result = next(r for r in results_of(mutant, "grow") if r.name == "grow keeps free_is_counted")
    text = shown(with_program(mutant, result, seconds=10.0), mutant)
    assert "grow breaks free_is_counted: The stored number of free blocks" in text
    assert "grow(r = request r, b = block b), declared at block_transitions.py:" in text
    assert "before  after" in text
    assert "run.grow(0, 1)" in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 100


def test_result_without_a_counterexample_renders_as_nothing() -> None:
    """There is nothing to show of an obligation that holds."""
    assert shown(results_of(SCHEDULER, "begin")[0], SCHEDULER).strip() == ""
