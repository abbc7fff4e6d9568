"""A freeze as a workload in the format of recordings, to be run against the reference itself.

The recorder's connector has a clock and serves one load of each request, so that not every way to
a freeze can be said in its terms; what can be said is run once (`kvproof.verify.outcome`) under
the same profile, and is returned only if it ends in the same way: somebody waits for ever.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attrs import define, field

from kvproof.verify.explorer.events import Abort, Arrive, Event, Schedule, Update
from kvproof.verify.explorer.findings import Finding
from kvproof.verify.explorer.machine import Machine
from kvproof.verify.explorer.recorder_settings import recorder_settings
from kvproof.verify.explorer.scope import Scope
from kvproof.verify.outcome import Outcome, run_to_end
from kvproof.verify.recording import FORMAT, read_recording


class NotSayableError(ValueError):
    """What happens cannot be said in the terms of a recorder; the message says what."""


def recorded_workload(scope: Scope, finding: Finding) -> str:
    """Return the header line of a recording.

    Raises:
        NotSayableError: If the recorder's connector cannot do what the finding needs.

    """
    if scope.lookahead:
        raise NotSayableError("a recording has no look-ahead without draft tokens")
    header = json.dumps(_header(scope, finding))
    if not _gets_stuck(scope, header):
        raise NotSayableError("with the recorder's clock nobody waits for ever")
    return header + "\n"


def _gets_stuck(scope: Scope, header: str) -> bool:
    """Return whether somebody waits for ever in the workload, with the recorder's clock."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "workload.jsonl"
        path.write_text(header + "\n", encoding="utf-8")
        recording = read_recording(path)
    faults = [f for f in run_to_end(recording, scope.profile, Outcome()) if f is not None]
    return bool(faults) and faults[-1].what == "end"


def _header(scope: Scope, finding: Finding) -> dict[str, Any]:
    clock = _Clock(Machine(scope, finding.workload))
    clock.run((*finding.events, *finding.loop))
    throttle = "".join("1" if throttled else "0" for throttled in clock.throttled)
    return {
        "format": FORMAT,
        "made_by": f"kvproof explore --profile {scope.profile.name}",
        "config": {
            **recorder_settings(scope),
            "throttle": throttle + "0" * _STEPS_MAX if "1" in throttle else "",
        },
        "workload": list(clock.entries.values()),
        "verdict": "stuck",
    }


@define
class _Clock:
    """Writes down at which step each thing happened, by doing it over again."""

    machine: Machine
    step: int = 0
    returned: int = 0
    throttled: list[bool] = field(factory=list)
    entries: dict[str, dict[str, Any]] = field(factory=dict)
    loads: dict[str, int] = field(factory=dict)
    ended: dict[str, int] = field(factory=dict)

    def run(self, events: Iterable[Event]) -> None:
        """Do everything over again."""
        for event in events:
            if isinstance(event, Arrive):
                self._arrive(event.name)
            elif isinstance(event, Abort):
                self._abort(event.name)
            before = self._loading()
            if isinstance(event, Update):
                self._take_ends(event)
            self.machine.follow(event)
            if isinstance(event, Schedule):
                self._take_step(event, self._loading() - before)
            elif isinstance(event, Update):
                self._take_results()

    def _arrive(self, name: str) -> None:
        if name in self.entries:
            raise NotSayableError(f"{name} comes twice")
        request = self.machine.request(name)
        self.entries[name] = {
            "id": name,
            "arrival_step": self.step + 1,
            "prompt_token_ids": list(request.prompt_token_ids),
            "max_tokens": request.max_tokens,
            "priority": request.priority,
        }

    def _abort(self, name: str) -> None:
        in_the_midst = self.returned < self.step
        key = "abort_mid_step" if in_the_midst else "abort_step"
        self.entries[name][key] = self.step if in_the_midst else self.step + 1

    def _loading(self) -> set[str]:
        bits = self.machine.pending()[0]
        return {name for name in self.machine.names if bits & self.machine.bit(name)}

    def _take_step(self, event: Schedule, started: set[str]) -> None:
        self.step += 1
        self.throttled.append(event.throttled)
        for name, tokens, is_asynchronous in event.answers:
            self._take_answer(name, tokens, is_asynchronous)
        for name in started:
            if name in self.loads:
                raise NotSayableError(f"{name} is loaded twice")
            self.loads[name] = self.step

    def _take_answer(self, name: str, tokens: int | None, is_asynchronous: bool) -> None:
        entry = self.entries[name]
        if name in self.loads:
            if tokens != 0:
                raise NotSayableError(f"{name} is offered something after its load")
        elif tokens is None:
            if "ext_tokens" in entry:
                raise NotSayableError(f"{name} is asked to ask again after an answer")
            entry["ext_unknown"] = entry.get("ext_unknown", 0) + 1
        elif entry.setdefault("ext_tokens", tokens) != tokens:
            raise NotSayableError(f"{name} is offered {tokens} tokens, and another time others")
        elif tokens:
            entry["ext_async"] = is_asynchronous

    def _take_ends(self, event: Update) -> None:
        step = self.returned + 1
        failed: dict[str, list[int]] = {}
        for name, place in event.failed:
            failed.setdefault(name, []).append(place)
        for name in event.lost:
            if name not in self._loading():
                raise NotSayableError(f"a transfer of {name} is lost that is no load")
            failed[name] = list(range(len(self.machine.scheduler.block_ids(name))))
        for name in (*event.received, *event.lost):
            self.entries[name]["ext_delay"] = step - self.loads[name]
        for name, places in failed.items():
            is_reported = name in (*event.received, *event.lost)
            if self.entries[name].get("ext_async", True) and not is_reported:
                raise NotSayableError(f"a load of {name} fails before it ends")
            self.entries[name]["ext_fail_blocks"] = places
        for name in event.sent:
            self.entries[name]["send_delay"] = step - self.ended[name]
        for name in event.stops:
            sampled = len(self.machine.scheduler.token_ids(name))
            self.entries[name]["stop_after"] = sampled + 1 - self.machine.shapes[name].prompt

    def _take_results(self) -> None:
        self.returned += 1
        transfers = self.machine.books.transfers
        for name in transfers.obligations if transfers is not None else ():
            self.ended.setdefault(name, self.returned)


_STEPS_MAX = 400
