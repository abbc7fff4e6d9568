"""A random way through what an exploration tries: longer than its shortest ways, and elsewhere."""

from __future__ import annotations

import random

from kvproof.verify.explorer.events import Abort, Arrive, Event, Schedule, Update
from kvproof.verify.explorer.machine import Machine
from kvproof.verify.explorer.scope import Scope, Workload

_ABORTS = 0.04  # of the calls; more would end everybody before anything happens


def random_walk(scope: Scope, workload: Workload, draw: random.Random, calls: int) -> list[Event]:
    """Return calls that can follow one another, at most `calls` of them.

    Arrivals, steps and updates are equally likely where they are possible; so are the answers of
    the connector, and the ends of transfers.
    """
    machine, found = Machine(scope, workload), list[Event]()
    while len(found) < calls:
        event = _choose(machine, draw)
        if event is None:
            break
        found.append(event)
    return found


def _choose(machine: Machine, draw: random.Random) -> Event | None:
    """Choose a call, and make it; return None if there is none to make."""
    events = list(machine.simple_events())
    aborts, *kinds = ([e for e in events if isinstance(e, k)] for k in (Abort, Arrive, Update))
    if aborts and draw.random() < _ABORTS:
        kinds = [aborts]
    throttles = machine.throttles()
    choices = [kind for kind in (*kinds, throttles) if kind]
    if not choices:
        return None
    chosen = draw.choice(draw.choice(choices))
    if isinstance(chosen, bool):
        return _step(machine, draw, throttled=chosen)
    machine.do(chosen)
    return chosen


def _step(machine: Machine, draw: random.Random, *, throttled: bool) -> Schedule:
    """Decide a step; each time that the connector is asked once more, draw its answer."""
    position, script = machine.position(), tuple[int, ...]()
    while True:
        event = machine.schedule(throttled, script)
        asked = machine.connector.asked
        if len(asked) == len(script):
            return event
        script = (*script, draw.randrange(asked[len(script)][1]))
        machine.go_back(position)
