"""The calls that were made of a scheduler, as a program that anyone can execute."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from attrs import fields

from kvproof.runtime import Profile, Request, SchedulerConfig
from kvproof.verify.victim_rule import VictimRule

TITLE = "# This program shows the fault:\n"
_IMPORTS = """\
from kvproof.runtime import EncoderItem, Profile, Request, Scheduler, SchedulerConfig
from kvproof.verify.event_replay import EventReplay
from kvproof.verify.stamping_model import StampingModel
from kvproof.verify.victim_rule import VictimRule

"""


class Disagreement(AssertionError):  # noqa: N818 - the name says what happened
    """A scheduler says something else than was expected; `claim` is the expectation as Python."""

    def __init__(self, claim: str, seen: object) -> None:
        """Say what was seen instead of the claim."""
        super().__init__(f"expected {claim}; saw {seen!r}")
        self.claim = claim


class RecordedRun:
    """Calls in order, and the claims made about what they return.

    Args:
        config: the limits of the scheduler.
        victim: its victim policy; None for that of the configuration.
        keep_claims: write every claim into the program, not only the one that fails.

    """

    def __init__(
        self, config: SchedulerConfig, victim: VictimRule | None, *, keep_claims: bool = False
    ) -> None:
        """Begin with a scheduler without requests."""
        self.keep_claims = keep_claims
        self.lines = [
            f"config = {config_text(config)}",
            "model = StampingModel(config)",
            f"choose_victim = {victim}",
            "options = dict(kv_pool=model.pool, choose_victim=choose_victim, debug=True)",
            "scheduler = Scheduler(config, **options)",
            "events = EventReplay(scheduler)",
        ]

    def call(self, line: str) -> None:
        """Take note of a call that is about to be made."""
        self.lines.append(line)

    def equal(self, expression: str, seen: object, expected: object) -> None:
        """Raise Disagreement unless both are equal; `expression` is how a program sees the value.

        Both are compared as they are; what is expected must have a `repr` that Python reads.
        """
        self.demand(f"{expression} == {expected!r}", seen == expected, seen)

    def demand(self, claim: str, holds: bool, seen: object) -> None:
        """Raise Disagreement unless a claim holds."""
        if self.keep_claims:
            self.lines.append(f"assert {claim}")
        if not holds:
            raise Disagreement(claim, seen)

    def program(self, fault: BaseException | None = None) -> str:
        """Return the run as a program; it ends with the claim that failed, if one did."""
        lines = list(self.lines)
        if isinstance(fault, Disagreement) and not self.keep_claims:
            lines.append(f"assert {fault.claim}")
        return _IMPORTS + "\n".join(lines) + "\n"


def program_of(fault: BaseException) -> str | None:
    """Return the program that was attached to a fault, if there is one."""
    for note in getattr(fault, "__notes__", ()):
        if note.startswith(TITLE):
            return str(note[len(TITLE) :])
    return None


def config_text(config: SchedulerConfig) -> str:
    """Return a configuration as Python, without what is as usual."""
    return _text(config, SchedulerConfig(num_blocks=2))


def request_text(request: Request) -> str:
    """Return a request as Python, without what is as usual."""
    prompt, stops = list(request.prompt_token_ids), sorted(request.stop_token_ids)
    values = [repr(request.request_id), str(prompt), f"max_tokens={request.max_tokens}"]
    if stops:
        values.append(f"stop_token_ids={stops}")
    usual = Request("", [])
    values += [
        f"{name}={getattr(request, name)!r}"
        for name in (item.name for item in fields(Request)[4:])
        if getattr(request, name) != getattr(usual, name)
    ]
    return f"Request({', '.join(values)})"


def _text(value: Any, usual: Any) -> str:
    """Return an object of attributes as Python, with those that are not as usual."""
    values = [
        f"{item.name}={_field_text(getattr(value, item.name), getattr(usual, item.name))}"
        for item in fields(type(value))
        if getattr(value, item.name) != getattr(usual, item.name)
    ]
    return f"{type(value).__name__}({', '.join(values)})"


def _field_text(value: object, usual: object) -> str:
    if isinstance(value, StrEnum):
        return repr(value.value)
    return _text(value, usual) if isinstance(value, Profile) else repr(value)
