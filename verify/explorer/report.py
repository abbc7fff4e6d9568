"""What an exploration came to, for people and for programs."""

from __future__ import annotations

from typing import Any

from attrs import asdict
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvproof.verify.explorer.checkpoint import event_values
from kvproof.verify.explorer.findings import Exploration, Finding
from kvproof.verify.explorer.recorder_settings import recorder_settings


def exit_code(result: Exploration) -> int:
    """Return 0 if everything was explored and nothing found, 1 if something was, 3 otherwise."""
    if result.findings:
        return 1
    return 0 if result.is_complete else 3


def show(console: Console, result: Exploration) -> None:
    """Print what was found, with programs, and how much was explored."""
    for number, finding in enumerate(result.findings, start=1):
        console.rule(f"{number}. {finding.kind} after {finding.length} calls")
        console.print(finding.program, soft_wrap=True, markup=False)
    if result.findings:
        console.print(_table(result.findings))
    style = "bold red" if result.findings else "bold green" if result.is_complete else "bold yellow"
    console.print(summary(result), style=style, highlight=False)


def summary(result: Exploration) -> str:
    """Return the counts in a sentence."""
    kinds = [finding.kind.value for finding in result.findings]
    found = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)) or "no fault"
    rate = result.transitions / max(result.core_seconds, 1e-9)
    extent = "all" if result.is_complete else "NOT all"
    return (
        f"{found}: {extent} of {len(list(result.scope.workloads()))} workloads explored,"
        f" {result.states:,} states, {result.transitions:,} transitions of the runtime"
        f" in {result.seconds:.0f} s ({rate:,.0f} a second and core)"
    )


def bound(result_or_scope: Any) -> str:
    """Return in a sentence what is covered."""
    scope = getattr(result_or_scope, "scope", result_or_scope)
    kinds = "; ".join(str(shape) for shape in scope.shapes)
    caching = ", prefix caching" if scope.caches_prefixes else ""
    failing = ", failed loads end their request" if scope.failure_policy == "fail" else ""
    return (
        f"{scope.profile.name}, {scope.policy}{caching}{failing}:"
        f" up to {scope.requests} requests at once,"
        f" {scope.blocks} blocks of {scope.block_size} tokens, {scope.in_flight} steps in flight;"
        f" requests (prompt+output): {kinds}"
    )


def _table(findings: tuple[Finding, ...]) -> Table:
    table = Table("", "what", "calls", "requests", "in words")
    for number, finding in enumerate(findings, start=1):
        kinds = "\n".join(str(shape) for shape in finding.workload)
        table.add_row(
            str(number), finding.kind.value, str(finding.length), kinds, escape(finding.what)
        )
    return table


def to_json(result: Exploration) -> dict[str, Any]:
    """Return everything as plain values."""
    return {
        "scope": asdict(result.scope),
        "config": recorder_settings(result.scope),
        "is_complete": result.is_complete,
        "states": result.states,
        "transitions": result.transitions,
        "seconds": result.seconds,
        "core_seconds": result.core_seconds,
        "workloads": [
            {
                "requests": [str(shape) for shape in part.workload],
                "states": part.states,
                "transitions": part.transitions,
                "core_seconds": part.seconds,
                "is_complete": part.is_complete,
                "findings": len(part.findings),
            }
            for part in result.parts
        ],
        "findings": [
            {
                "kind": finding.kind.value,
                "what": finding.what,
                "length": finding.length,
                "requests": [str(shape) for shape in finding.workload],
                "shapes": [asdict(shape) for shape in finding.workload],
                "events": [event_values(event) for event in finding.events],
                "loop": [event_values(event) for event in finding.loop],
                "program": finding.program,
            }
            for finding in result.findings
        ],
    }
