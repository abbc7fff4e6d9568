"""What has been explored so far, as JSON: to go on from there, or to look at it elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import asdict, fields

from kvproof.verify.explorer.events import Abort, Arrive, Event, Schedule, Update
from kvproof.verify.explorer.findings import Explored, Finding, Kind
from kvproof.verify.explorer.scope import Scope, Workload
from kvproof.verify.explorer.shapes import Shape

FORMAT = "kvproof-exploration/1"
_EVENTS: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (Arrive, Abort, Schedule, Update)
}


class CheckpointError(ValueError):
    """A file that is no checkpoint, or one of another exploration; it says which and why."""


def write(path: Path, scope: Scope, parts: Sequence[Explored]) -> None:
    """Write what has been explored; a file that is there is replaced when all is written."""
    content = {"format": FORMAT, "scope": asdict(scope), "parts": [_part(part) for part in parts]}
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(content) + "\n", encoding="utf-8")
    fresh.replace(path)


def read(path: Path, scope: Scope) -> list[Explored]:
    """Return what had been explored of a scope.

    Raises:
        CheckpointError: If the file is no checkpoint, or of another scope.

    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); choose another file.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"{path}: expected the format {FORMAT!r}; choose another file.")
    if content["scope"] != json.loads(json.dumps(asdict(scope))):
        raise CheckpointError(f"{path}: is of other bounds; give the same, or choose another file.")
    return [_part_of(part) for part in content["parts"]]


def event_values(event: Event) -> list[Any]:
    """Return an event as its name and its fields."""
    return [type(event).__name__, asdict(event)]


def _part(part: Explored) -> dict[str, Any]:
    values = asdict(part, recurse=False)
    return {
        **values,
        "workload": _shapes(part.workload),
        "findings": [_finding(finding) for finding in part.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        **asdict(finding, recurse=False),
        "workload": _shapes(finding.workload),
        "events": [event_values(event) for event in finding.events],
        "loop": [event_values(event) for event in finding.loop],
    }


def _shapes(workload: Workload) -> list[dict[str, Any]]:
    return [asdict(shape) for shape in workload]


def _part_of(values: dict[str, Any]) -> Explored:
    findings = tuple(_finding_of(finding) for finding in values.pop("findings"))
    workload = _workload_of(values.pop("workload"))
    return Explored(**values, workload=workload, findings=findings)


def _finding_of(values: dict[str, Any]) -> Finding:
    names = {item.name for item in fields(Finding)} - {"kind", "workload", "events", "loop"}
    return Finding(
        kind=Kind(values["kind"]),
        workload=_workload_of(values["workload"]),
        events=tuple(_event_of(event) for event in values["events"]),
        loop=tuple(_event_of(event) for event in values["loop"]),
        **{name: values[name] for name in names},
    )


def _workload_of(shapes: list[dict[str, Any]]) -> Workload:
    return tuple(Shape(**{name: _frozen(value) for name, value in s.items()}) for s in shapes)


def _event_of(values: list[Any]) -> Event:
    name, own = values
    return _EVENTS[name](**{key: _frozen(value) for key, value in own.items()})


def _frozen(value: Any) -> Any:
    """Return lists as tuples, within one another."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
