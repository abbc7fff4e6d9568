"""The calls that were made of a scheduler, as a program that anyone can execute."""

from __future__ import annotations

from attrs import fields

from kvproof.runtime import Request, SchedulerConfig
from kvproof.verify.victim_rule import VictimRule

TITLE = "# This program shows the fault:\n"
_IMPORTS = """\
from kvproof.runtime import Request, Scheduler, SchedulerConfig
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
        victim: its victim policy.
        keep_claims: write every claim into the program, not only the one that fails.

    """

    def __init__(
        self, config: SchedulerConfig, victim: VictimRule, *, keep_claims: bool = False
    ) -> None:
        """Begin with a scheduler without requests."""
        self.keep_claims = keep_claims
        self.lines = [
            f"config = {config_text(config)}",
            "model = StampingModel(config)",
            f"choose_victim = {victim}",
            "options = dict(kv_pool=model.pool, choose_victim=choose_victim, debug=True)",
            "scheduler = Scheduler(config, **options)",
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
    values = [
        f"{item.name}={getattr(config, item.name)}"
        for item in fields(SchedulerConfig)
        if getattr(config, item.name) != item.default
    ]
    return f"SchedulerConfig({', '.join(values)})"


def request_text(request: Request) -> str:
    """Return a request as Python."""
    stops = sorted(request.stop_token_ids)
    return (
        f"Request({request.request_id!r}, {list(request.prompt_token_ids)},"
        f" max_tokens={request.max_tokens}{f', stop_token_ids={stops}' if stops else ''})"
    )
