"""States that the explorer takes for one are one, and it reaches all that there are."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from attrs import evolve

from kvproof.runtime import Profile
from kvproof.verify.explorer import Scope, Shape
from kvproof.verify.explorer.events import Event
from kvproof.verify.explorer.machine import Machine, Position
from kvproof.verify.explorer.naive import naive_ways
from kvproof.verify.explorer.search import Search

LOADING = Shape(prompt=3, max_tokens=2, offers=(2, 3), sends=True)
SHORT = Shape(prompt=2, max_tokens=1, offers=(2,))
PLAIN = Shape(prompt=1, max_tokens=2, stops=True)
PROFILES = {"safe": Profile.safe(), "reference": Profile.vllm_0_25_1()}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("workload", [(LOADING,), (SHORT, PLAIN)], ids=["one", "two"])
def test_agrees_with_a_naive_explorer(profile: str, workload: tuple[Shape, ...]) -> None:
    """What is reached by doing everything over again, without keys, is what the search reaches."""
    scope = Scope(requests=2, blocks=2, shapes=workload, profile=PROFILES[profile], throttles=False)
    search = Search(scope, workload)
    search.run()
    reached = {key_of(scope, workload, way) for way in naive_ways(scope, workload)}
    expected = {key_of(scope, workload, search.graph.path(n)) for n in range(len(search.graph))}
    assert reached == expected
    assert len(expected) == len(search.graph)


def key_of(scope: Scope, workload: tuple[Shape, ...], way: Iterable[Event]) -> bytes:
    """Return the key of the state that a way leads to."""
    machine = Machine(scope, workload)
    for event in way:
        machine.follow(event)
    return machine.key()[1]


@pytest.mark.parametrize("changes", [{}, {"in_flight": 2}, {"policy": "priority"}], ids=str)
def test_states_with_one_key_go_on_in_the_same_way(changes: dict[str, Any]) -> None:
    """Whatever way led to a state with some key, the same can happen next, with the same keys."""
    urgent = evolve(PLAIN, priority=-1)
    scope = evolve(Scope(requests=2, blocks=3, shapes=(LOADING, urgent)), **changes)
    machine = Machine(scope, (LOADING, urgent))
    first = dict[bytes, Position]()
    compared, level = 0, [machine.position()]
    while level and compared < 300:
        following = list[Position]()
        for position in level:
            machine.go_back(position)
            key = machine.key()[1]
            if key not in first:
                first[key] = position
                following += [after for _, _, after in successors(machine, position)]
            elif raw(position) != raw(first[key]):
                assert outcomes(machine, position) == outcomes(machine, first[key])
                compared += 1
        level = following
    assert compared > 100


def raw(position: Position) -> object:
    """Return the core's state as it lies in memory, block ids, rows and frames as they are."""
    books: Any = position.kept[0]
    return books[0]


def outcomes(machine: Machine, position: Position) -> set[tuple[str, bytes]]:
    """Return what can happen in a state, and to which keys it leads."""
    return {(repr(event), key) for event, key, _ in successors(machine, position)}


def successors(machine: Machine, position: Position) -> Iterator[tuple[Event, bytes, Position]]:
    """Yield what can happen in a state, and where it leads to."""
    machine.go_back(position)
    events, throttles = list(machine.simple_events()), machine.throttles()
    for event in events:
        machine.go_back(position)
        machine.do(event)
        yield event, machine.key()[1], machine.position()
    for throttled in throttles:
        machine.go_back(position)
        step = machine.schedule(throttled, ())
        yield step, machine.key()[1], machine.position()
