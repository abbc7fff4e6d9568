"""What became of all bugs: a table, those that cannot be planted, the controls, and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvproof.verify.bugs.bug import Bug, Unplanted
from kvproof.verify.bugs.examine import Finding
from kvproof.verify.bugs.table import BY_NAME, title

SECONDS_MAX = 5.0


@frozen
class Report:
    """Findings in the order of the table; `unplanted` are the reports that cannot be planted."""

    findings: Sequence[Finding]
    unplanted: Sequence[Unplanted] = ()
    seconds: float = 0.0

    @property
    def bugs(self) -> list[Finding]:
        """What became of the bugs."""
        order = {name: place for place, name in enumerate(BY_NAME)}
        found = (item for item in self.findings if not item.is_control)
        return sorted(found, key=lambda item: order.get(item.name, len(order)))

    @property
    def controls(self) -> list[Finding]:
        """What became of the controls."""
        return sorted((item for item in self.findings if item.is_control), key=lambda i: i.name)

    @property
    def is_good(self) -> bool:
        """Whether every bug was caught as expected and every control has seen nothing."""
        return bool(self.bugs) and all(item.is_good for item in self.findings)


def show(console: Console, report: Report) -> None:
    """Print the table, what is not planted and why, what went wrong, and the totals."""
    console.print(findings_table(report))
    if report.unplanted:
        console.print(unplanted_table(report.unplanted))
    for line in faults(report):
        console.print(line, style="bold red", highlight=False, soft_wrap=True)
    style = "bold green" if report.is_good else "bold red"
    console.print(totals(report), style=style, highlight=False, soft_wrap=True)


def findings_table(report: Report) -> Table:
    """Return a row for each bug: what was planted where, and what caught it."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    for heading, ratio in (("", 0), ("report", 3), ("planted", 5), ("caught", 5)):
        table.add_column(heading, overflow="fold", ratio=ratio or None)
    table.add_column("by")
    for heading in ("s", "way"):
        table.add_column(heading, justify="right", no_wrap=True)
    letter = ""
    for item in report.bugs:
        if item.name[0] != letter:
            letter = item.name[0]
            table.add_row(letter, Text(title(letter), style="bold"), "", "", "", "", "")
        table.add_row(*_cells(item, BY_NAME[item.name]))
    return table


def _cells(item: Finding, bug: Bug) -> tuple[Text | str, ...]:
    planted = Text(f"{bug.injection.where}: {bug.injection.what}")
    reports = Text(", ".join(bug.reports) or "(none)")
    seen = item.sighting
    if seen is None or item.claim is None:
        return item.name, reports, planted, Text(_failure(item), style="red"), "", "", ""
    caught = Text(f"{bug.breaks} {item.claim}")
    seconds = f"{seen.seconds:.1f}"
    way = f"{seen.length} {seen.unit}"
    return item.name, reports, planted, caught, seen.method, seconds, way


def _failure(item: Finding) -> str:
    if item.error:
        return f"the check broke down: {item.error}"
    if item.sighting is not None:
        return f"caught as something else: {'; '.join(item.sighting.claims)}"
    return "NOT CAUGHT"


def unplanted_table(unplanted: Sequence[Unplanted]) -> Table:
    """Return a row for each report that cannot be planted, with the reason."""
    table = Table(title="not planted", title_justify="left", box=None, show_header=False)
    for item in unplanted:
        table.add_row(item.name, Text(", ".join(item.reports)), Text(item.reason))
    return table


def faults(report: Report) -> list[str]:
    """Return a line for each bug that was not caught, is caught too late, or a loud control."""
    lines = [f"{item.name}: {_failure(item)}" for item in report.bugs if not item.is_good]
    for item in report.controls:
        if not item.is_good:
            said = item.error or "; ".join(item.sighting.claims if item.sighting else ())
            lines.append(f"control {item.name}: expected nothing; saw {said}")
    return lines


def totals(report: Report) -> str:
    """Return how many were caught, how many controls were silent, and how long it took."""
    caught = sum(item.is_good for item in report.bugs)
    silent = sum(item.is_good for item in report.controls)
    slow = [item.name for item in report.bugs if item.sighting and _is_slow(item.sighting.seconds)]
    late = f", {', '.join(slow)} in more than {SECONDS_MAX:.0f} s" if slow else ""
    return (
        f"{caught} of {len(report.bugs)} bugs caught{late}; {silent} of {len(report.controls)}"
        f" controls silent; {len(report.unplanted)} reports not planted; {report.seconds:.0f} s"
    )


def _is_slow(seconds: float) -> bool:
    return seconds > SECONDS_MAX


def to_json(report: Report) -> dict[str, Any]:
    """Return everything as data."""
    return {
        "seconds": round(report.seconds, 3),
        "bugs": [_bug(item, BY_NAME[item.name]) for item in report.bugs],
        "controls": [
            {
                "check": item.name,
                "silent": item.is_good,
                "seconds": round(item.seconds, 3),
                "claims": list(item.sighting.claims) if item.sighting else [],
            }
            for item in report.controls
        ],
        "not_planted": [
            {"name": item.name, "reports": list(item.reports), "reason": item.reason}
            for item in report.unplanted
        ],
    }


def _bug(item: Finding, bug: Bug) -> dict[str, Any]:
    seen = item.sighting
    form = {
        "name": bug.name,
        "reports": list(bug.reports),
        "where": str(bug.injection.where),
        "planted": bug.injection.what,
        "check": bug.catcher.name,
        "property": bug.breaks,
        "caught": item.is_good,
        "claim": item.claim,
        "error": item.error,
    }
    if seen is not None:
        form |= {
            "method": seen.method,
            "claims": list(seen.claims),
            "seconds": round(seen.seconds, 3),
            "length": seen.length,
            "unit": seen.unit,
            "program": seen.program,
        }
    return form
