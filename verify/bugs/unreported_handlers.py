"""Handlers with faults that were found by looking, and that nobody has reported.

Each function takes the sound handler and returns the one that is put in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import evolve

from kvproof.runtime.connector import TransferReport
from kvproof.runtime.prefix_cache import PrefixCache
from kvproof.runtime.step_results import StepResults
from kvproof.runtime.transfers import Transfers

Handler = Callable[..., Any]


def clears_first(sound: Handler) -> Handler:
    """Empty the index, and look afterwards whether some block is in use."""

    def reset(prefix: PrefixCache) -> bool:
        prefix.index.clear()
        return bool(sound(prefix))

    return reset


def forgets_failures(sound: Handler) -> Handler:
    """Let the last report of failed blocks be the one that counts."""

    def note_failures(transfers: Transfers, report: TransferReport) -> list[int]:
        if report.failed_blocks:
            transfers._failed.clear()
        return list(sound(transfers, report))

    return note_failures


def forgives_losses(sound: Handler) -> Handler:
    """Take note of failed blocks alone."""

    def note_failures(transfers: Transfers, report: TransferReport) -> list[int]:
        return list(sound(transfers, evolve(report, lost=())))

    return note_failures


def parks_failed_sessions(_: Handler) -> Handler:
    """Let no session end when a step brings it a reason."""

    def ended_rows(results: StepResults) -> list[int]:
        ended = (place for place in results.reasons if not results.requests[place].resumable)
        return [int(results.rows[place]) for place in ended]

    return ended_rows
