"""Whether a cycle is a freeze or a livelock, and who waits for what in it, in words."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from kvproof.core import Status
from kvproof.runtime import StepOutput
from kvproof.verify.explorer.events import Event, Schedule
from kvproof.verify.explorer.findings import Kind
from kvproof.verify.explorer.machine import Machine
from kvproof.verify.explorer.scope import Scope, Workload


@frozen
class Stuck:
    """What goes on in a cycle; `signature` is the same for cycles that are alike."""

    kind: Kind
    what: str
    signature: str


def described(
    scope: Scope, workload: Workload, events: Sequence[Event], loop: Sequence[Event]
) -> Stuck | None:
    """Do the calls over again and say what they come to; None if nobody is left unfinished."""
    machine = Machine(scope, workload)
    for event in events:
        machine.follow(event)
    if not machine.unfinished():
        return None
    people, free = _people(machine), machine.scheduler.statistics().num_free_blocks
    rests = not any(machine.pending())
    for event in loop:
        machine.follow(event)
        rests = rests and not any(machine.pending()) and not _is_frame(machine.outcome)
    steps = sum(isinstance(event, Schedule) for event in loop)
    kind = Kind.FREEZE if rests and steps == 1 else Kind.LIVELOCK
    how = "nothing changes any more" if kind is Kind.FREEZE else _rounds(steps)
    words = "; ".join(f"{name} {state} {detail}" for name, state, detail, _ in people)
    what = f"{how}: {words}; {free} of {scope.blocks} blocks are free"
    return Stuck(kind, what, " | ".join(sorted(alike for *_, alike in people)))


def _is_frame(outcome: object) -> bool:
    """Return whether a step has been decided that computes something."""
    return isinstance(outcome, StepOutput) and outcome.num_requests > 0


def _rounds(steps: int) -> str:
    return "the same step goes round" if steps == 1 else f"the same {steps} steps go round"


def _people(machine: Machine) -> list[tuple[str, str, str, str]]:
    """Return of each unfinished request its name, state, what it has, and what others like it."""
    found, free = [], machine.books.state.pool.free
    for name in sorted(machine.unfinished()):
        row = machine.books.table.row_of[name]
        cells = machine.books.state.request.cells
        state = Status(cells.status[row]).name
        held, known = cells.held[row], cells.known[row]
        detail = f"has {known} tokens and {held} blocks"
        fits = -(-(known + machine.scope.lookahead) // machine.scope.block_size) - held <= free
        alike = f"{state} {'with' if held else 'without'} blocks, {'fits' if fits else 'does not'}"
        found.append((name, state, detail, alike))
    return found
