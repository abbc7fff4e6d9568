"""The lemmas about one pass hold of the runtime, and say no to a loop that does otherwise."""

from collections.abc import Callable

import pytest
from attrs import evolve

from kvproof.runtime import scheduler as scheduler_module
from kvproof.runtime import waiting_pass
from kvproof.runtime.books import Books
from kvproof.runtime.running_view import RunningView
from kvproof.runtime.step_plan import StepPlan
from kvproof.verify.explorer import Kind, Scope, Shape, explore
from kvproof.verify.explorer.pass_lemmas import PASS_LEMMAS, checks_of_passes

LONG = Shape(prompt=3, max_tokens=3)
LOADING = Shape(prompt=5, max_tokens=2, offers=(2,))
SCOPE = Scope(requests=2, blocks=3, shapes=(LONG, LOADING), throttles=False)


def broken(scope: Scope) -> set[str]:
    """Return the names of the lemmas that an exploration finds broken."""
    found = explore(scope, checks=checks_of_passes(), most_states=3000).findings
    return {finding.what.partition(":")[0] for finding in found if finding.kind is Kind.LEMMA}


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_lemmas_hold_of_the_runtime(policy: str, in_flight: int) -> None:
    """Whatever happens within small bounds, each pass does what the lemmas say."""
    assert not broken(evolve(SCOPE, policy=policy, in_flight=in_flight))


def idle(books: Books, plan: StepPlan) -> None:
    """Admit nobody."""


def first_running(view: RunningView) -> int:
    """Preempt the one that was admitted first."""
    return int(view.rows[0])


def local_first(books: Books) -> object:
    """Look at loaded requests last."""
    if books.waiting:
        return books.waiting
    return books.landed or books.skipped or None


@pytest.mark.parametrize(
    ("module", "name", "replacement", "lemma"),
    [
        (scheduler_module, "schedule_waiting", idle, "a_pass_does_something"),
        (scheduler_module, "schedule_running", lambda *_: None, "the_first_is_served"),
        (waiting_pass, "next_queue", local_first, "a_loaded_request_is_admitted"),
    ],
)
def test_a_loop_that_does_otherwise_is_found(
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    name: str,
    replacement: Callable[..., object],
    lemma: str,
) -> None:
    """Each lemma fails of a loop with one wrong part."""
    monkeypatch.setattr(module, name, replacement)
    assert lemma in broken(SCOPE)


def test_a_loop_that_preempts_the_first_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is served first may not give way while others run, even to itself."""
    monkeypatch.setattr(scheduler_module, "last_running", first_running)
    assert "the_first_is_kept" in broken(evolve(SCOPE, shapes=(LONG,), blocks=4))


def test_names_are_unique() -> None:
    """A lemma is told by its name."""
    assert len({lemma.name for lemma in PASS_LEMMAS}) == len(PASS_LEMMAS)
