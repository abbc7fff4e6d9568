"""The driver does all the work there is, on one process or several, and loses nothing."""

import os
import pickle
from collections.abc import Callable

import pytest
from attrs import evolve

from kvproof.spec.scheduler import SCHEDULER
from kvproof.verify.run import CHECKS, Check, chosen, longest_first, run, tasks
from kvproof.verify.selection import selection
from kvproof.verify.task import Task
from kvproof.verify.verdict import Method, Result, Verdict
from kvproof.verify.well_formed import check_well_formed


def succeed() -> list[Result]:
    """Return one proved obligation."""
    return [Result("grow keeps conservation", "S1", "grow", Method.INDUCTION, Verdict.PROVED)]


def stumble() -> list[Result]:
    """Raise, as a check with a fault in it would."""
    raise ZeroDivisionError("a fault in the check")


def vanish() -> list[Result]:
    """End the whole process, as a solver that crashes would."""
    os._exit(7)


def task(call: Callable[[], list[Result]], **known: object) -> Task:
    """Return a task that makes this call."""
    return Task(call.__name__, call, (Method.INDUCTION,), **known)  # type: ignore[arg-type]


def results(work: list[Task], jobs: int) -> list[Result]:
    """Return the results of all tasks."""
    return [result for _, found in run(work, jobs) for result in found]


def test_every_row_and_every_check_is_a_task() -> None:
    """There is one task for each transition and one for each check of the whole declaration."""
    labels = [item.label for item in tasks(SCHEDULER)]

    assert labels == [*(item.label for item in CHECKS), *SCHEDULER.transition]


def test_tasks_can_be_sent_to_another_process() -> None:
    """Where processes are not forked, each task is sent whole."""
    for item in tasks(SCHEDULER):
        assert pickle.loads(pickle.dumps(item)).label == item.label


def test_the_longest_task_is_begun_first() -> None:
    """Tasks are begun by falling cost."""
    costs = [item.cost for item in longest_first(tasks(SCHEDULER))]

    assert costs == sorted(costs, reverse=True)


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_do_not_depend_on_the_number_of_processes(jobs: int) -> None:
    """One process and two give the same verdicts."""
    work = [item for item in tasks(SCHEDULER) if item.label in {"grow", "begin", "start"}]

    found = results(work, jobs)

    assert {result.verdict for result in found} == {Verdict.PROVED}
    assert len(found) == len({result.name for result in found}) > len(work)


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_exception_is_an_unknown_result_with_its_traceback(jobs: int) -> None:
    """A check that raises is reported as unknown, says why, and stops no other."""
    found = {result.verdict: result for result in results([task(stumble), task(succeed)], jobs)}

    assert set(found) == {Verdict.UNKNOWN, Verdict.PROVED}
    reason = found[Verdict.UNKNOWN].counterexample
    assert reason is not None
    assert "ZeroDivisionError: a fault in the check" in reason.explanation
    assert "stumble" in reason.explanation


def test_a_process_that_dies_is_an_unknown_result() -> None:
    """When a process ends in the middle, no task of it is taken for done."""
    found = results([task(vanish), task(vanish)], 2)

    assert [result.verdict for result in found] == [Verdict.UNKNOWN] * 2
    assert all("its process ended" in str(result.counterexample) for result in found)


def test_the_solver_is_chosen_in_every_process() -> None:
    """A solver that does not exist is refused, wherever the work is done."""
    with pytest.raises(ValueError, match="no such solver"):
        list(run([task(succeed)], 1, "no such solver"))

    found = [result for _, many in run([task(succeed)] * 2, 2, "none") for result in many]
    assert [result.verdict for result in found] == [Verdict.UNKNOWN] * 2


def test_a_declaration_with_a_mistake_is_refuted() -> None:
    """The first obligation is that the declaration has no mistake that the language refuses."""
    grow = SCHEDULER.transition["grow"]
    wrong = SCHEDULER.with_transition(evolve(grow, effect=(*grow.effect, grow.effect[0])))

    (good,), (bad,) = check_well_formed(SCHEDULER), check_well_formed(wrong)

    assert good.verdict is Verdict.PROVED
    assert bad.verdict is Verdict.REFUTED
    assert "assign each variable once" in str(bad.counterexample)


@pytest.mark.parametrize("item", CHECKS, ids=lambda item: item.label)
def test_a_check_yields_what_its_line_in_the_table_says(item: Check) -> None:
    """Methods and rows of the results are those by which the task can be found beforehand."""
    found = item.call(SCHEDULER)

    assert found
    assert {result.method for result in found} <= set(item.methods)
    assert item.names_rows or not any(result.row for result in found)


@pytest.mark.parametrize("name", ["grow", "publish_early"])
def test_a_row_yields_what_its_words_say(name: str) -> None:
    """Each field of the results of a row is among the words by which its task can be found."""
    (row,) = (item for item in tasks(SCHEDULER) if item.label == name)

    for result in row.call():
        assert {result.name, result.property, result.row, result.method} <= set(row.words)
        assert result.method in row.methods


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("", True),
        ("S1", True),
        ("s1", True),
        ("S10", False),
        ("S", True),
        ("grow", True),
        ("row", True),
        ("induction", True),
        ("initial", False),
        ("keeps conserv", True),
        ("grow keeps *", True),
        ("*conservation", True),
        ("keeps *", False),
        ("GROW", True),
    ],
)
def test_a_pattern_chooses_by_any_field(pattern: str, found: bool) -> None:
    """A whole name chooses exactly, a part or a pattern with stars chooses what it fits."""
    (result,) = succeed()

    assert selection(SCHEDULER, pattern).chooses(result) is found


@pytest.mark.parametrize(
    ("pattern", "labels"),
    [
        ("witness", {"witnesses"}),
        ("lemma", {"lemmas"}),
        ("difference", {row.name for row in SCHEDULER.transitions if row.breaks}),
        ("preempt", {"preempt", "measures", "inverses", "translation"}),
    ],
)
def test_work_is_left_out_before_it_is_done(pattern: str, labels: set[str]) -> None:
    """A task that cannot yield anything that was asked for is not begun."""
    left = {item.label for item in chosen(tasks(SCHEDULER), selection(SCHEDULER, pattern))}

    assert left == labels


def test_a_failed_task_is_reported_whatever_was_asked_for() -> None:
    """A pattern never hides that a check did not come to its end."""
    (result,) = results([task(stumble)], 1)

    assert selection(SCHEDULER, "S1").chooses(result)
