"""A way to a fault as a program that anyone can run, against the public runtime."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.verify.explorer.events import Abort, Arrive, Event, Schedule, Update
from kvproof.verify.explorer.findings import Fault, Finding, Kind
from kvproof.verify.explorer.machine import GO_ON, STOP, Machine
from kvproof.verify.explorer.scope import Scope, Workload
from kvproof.verify.recorded_run import config_text, request_text

_OPENING = '''\
"""{title}"""

from kvproof.runtime import Profile, Request, Scheduler, SchedulerConfig
from kvproof.runtime.connector import TransferReport
from kvproof.verify.explorer.scripted_connector import AnsweringConnector

connector = AnsweringConnector(keeps={keeps})
scheduler = Scheduler({config}, connector=connector)
steps = []


def schedule(*answers, throttled=False):
    connector.answers = list(answers)
    steps.append(scheduler.schedule(throttle_prefills=throttled))


def update(report=TransferReport(), stops=()):
    step = steps.pop(0)
    tokens = {{name: {stop} if name in stops else {go_on} for name in step.sampled_req_ids}}
    return len(scheduler.update(step, tokens, report))


def block(name, place):
    return scheduler.block_ids(name)[place : place + 1] if scheduler.status(name) else []


'''


def finding_of(scope: Scope, workload: Workload, fault: Fault) -> Finding:
    """Return a fault with its program."""
    lines = _lines(scope, workload, fault.events)
    if fault.kind is Kind.INVARIANT:
        lines.append("scheduler.check()")
    elif fault.kind is Kind.LEMMA:
        lines.append(f"raise AssertionError({fault.what!r})")
    elif fault.loop:
        lines += _round(_lines(scope, workload, fault.loop, after=fault.events))
    opening = _OPENING.format(
        title=fault.what.replace('"', "'").replace("\\", "/"),
        keeps=[name for name, shape in Machine(scope, workload).shapes.items() if shape.sends],
        config=config_text(scope.config()),
        stop=STOP,
        go_on=GO_ON,
    )
    return Finding(
        kind=fault.kind,
        what=fault.what,
        program=opening + "\n".join(lines) + "\n",
        length=len(fault.events),
        signature=fault.signature,
        workload=workload,
        events=fault.events,
        loop=fault.loop,
    )


def _round(lines: Sequence[str]) -> list[str]:
    """Return calls that are made three times, and the claim that somebody gains by them."""
    body = ["    " + ("gained += " if line.startswith("update") else "") + line for line in lines]
    return [
        "",
        "# From here on the same goes round and round:",
        "gained = 0",
        "for _ in range(3):",
        *body,
        'assert gained, "nobody gets a token, and nobody ends"',
    ]


def _lines(
    scope: Scope, workload: Workload, events: Sequence[Event], after: Sequence[Event] = ()
) -> list[str]:
    """Return a line for each call; arrivals need to know what happened before them."""
    machine, lines = Machine(scope, workload), list[str]()
    for event in after:
        machine.follow(event)
    for place, event in enumerate(events):
        lines.append(_line(machine, event))
        if place < len(events) - 1:  # what the last one does may be the fault
            machine.follow(event)
    return lines


def _line(machine: Machine, event: Event) -> str:
    if isinstance(event, Arrive):
        return f"scheduler.add_request({request_text(machine.request(event.name))})"
    if isinstance(event, Abort):
        return f"scheduler.abort({event.name!r})"
    if isinstance(event, Schedule):
        throttled = ["throttled=True"] if event.throttled else []
        return f"schedule({', '.join([*map(repr, event.answers), *throttled])})"
    return f"update({', '.join(_ends(event))})"


def _ends(event: Update) -> list[str]:
    parts = []
    for name in ("received", "sent", "lost"):
        if getattr(event, name):
            parts.append(f"{name}={list(getattr(event, name))}")
    if event.failed:
        blocks = ", ".join(f"*block({name!r}, {place})" for name, place in event.failed)
        parts.append(f"failed_blocks=[{blocks}]")
    arguments = [f"TransferReport({', '.join(parts)})"] if parts else []
    return arguments + ([f"stops={list(event.stops)}"] if event.stops else [])
