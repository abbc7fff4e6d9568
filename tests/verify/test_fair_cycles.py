"""Only cycles that are fair to the scheduler count as freezes and livelocks."""

import pytest

from kvproof.verify.explorer.events import Arrive, Event, Schedule, Update
from kvproof.verify.explorer.fair_cycles import fair_cycles, way_of
from kvproof.verify.explorer.graph import Graph

AGAIN = Schedule(answers=(("a", None, False),))
ANSWER = Schedule(answers=(("a", 0, False),))


def graph(loading: list[int], calls: list[tuple[int, int, Event]]) -> Graph:
    """Return a graph of states, of which it is said who is being loaded, and idle calls."""
    made = Graph()
    for state, pending in enumerate(loading):
        made.add_state(max(state - 1, 0), Arrive("a") if state else None, (pending, 0))
    for source, target, call in calls:
        made.add_idle_call(source, target, call)
    return made


def test_round_of_steps_is_a_cycle() -> None:
    """A step and its return that lead back are found, with the way there, from the step on."""
    made = graph([0, 0, 0], [(1, 2, Schedule()), (2, 1, Update()), (0, 1, Schedule())])
    (cycle,) = fair_cycles(made)
    to, around = way_of(made, cycle)
    assert to == (Arrive("a"),)
    assert around == (Schedule(), Update())


def test_way_without_return_is_none() -> None:
    """What never comes back is no cycle."""
    assert not list(fair_cycles(graph([0, 0], [(0, 1, Schedule())])))


@pytest.mark.parametrize(("loading", "count"), [([1, 1], 0), ([1, 2], 1), ([0, 1], 1)])
def test_load_that_never_ends_excuses(loading: list[int], count: int) -> None:
    """A cycle in which one load goes on all the time is the connector's fault; else it is ours."""
    made = graph(loading, [(0, 1, Schedule()), (1, 0, Update())])
    assert len(list(fair_cycles(made))) == count


def test_connector_that_never_answers_excuses() -> None:
    """A cycle in which somebody is always told to ask again is the connector's fault."""
    assert not list(fair_cycles(graph([0, 0], [(0, 1, AGAIN), (1, 0, Update())])))


def test_connector_that_answers_at_last_does_not_excuse() -> None:
    """A fair cycle goes past an answer, even where a shorter one would not."""
    calls: list[tuple[int, int, Event]] = [
        (0, 1, AGAIN),
        (1, 0, Update()),
        (0, 2, ANSWER),
        (2, 0, Update()),
    ]
    made = graph([0, 0, 0], calls)
    (cycle,) = fair_cycles(made)
    assert ANSWER in way_of(made, cycle)[1]


def test_rest_of_an_unfair_component_is_looked_at_again() -> None:
    """Where one request is never answered, a cycle without its question is still found."""
    calls: list[tuple[int, int, Event]] = [
        (0, 1, AGAIN),
        (1, 0, Update()),
        (0, 2, Schedule()),
        (2, 0, Update()),
    ]
    made = graph([0, 0, 0], calls)
    (cycle,) = fair_cycles(made)
    assert AGAIN not in way_of(made, cycle)[1]
