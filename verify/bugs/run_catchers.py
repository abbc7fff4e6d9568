"""The fuzzers and trials as catchers: the runtime itself, with random calls and transfers."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from attrs import frozen
from hypothesis import HealthCheck, Phase, given, seed, settings

from kvproof.verify import outcome, transfer_workloads, workload
from kvproof.verify.abort_trials import AbortTrials
from kvproof.verify.bugs.injection import Injection
from kvproof.verify.bugs.sighting import EnoughError, Sighting, Sightings
from kvproof.verify.difference import Difference
from kvproof.verify.recorded_run import RecordedRun
from kvproof.verify.recording import Recording
from kvproof.verify.simulated_connector import SimulatedConnector
from kvproof.verify.stateful import run_fuzz
from kvproof.verify.transfer_workloads import NoisyConnector


@contextmanager
def quiet() -> Iterator[None]:
    """Let nothing be printed or logged: a runtime with a fault complains a thousand times."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(before)


@frozen
class Fuzz:
    """The stateful machine: random calls, each compared with an independent model.

    Attributes:
        configurations: the limits to draw from, by their name in `kvproof.verify.workload`.
        runs: how many runs at most.
        calls: calls of one run.
        seed: which runs.

    """

    configurations: str
    runs: int = 40
    calls: int = 20
    seed: int = 0

    @property
    def name(self) -> str:
        """Say what is run."""
        return f"fuzz of {self.configurations} ({self.runs} runs of {self.calls}, seed {self.seed})"

    def look(self, injection: Injection) -> Sighting | None:
        """Return what went wrong in the first run in which something did."""
        seen = Sightings()
        noting = mock.patch.object(RecordedRun, "program", _noting(seen))
        with injection.planted(), noting, quiet(), suppress(EnoughError, Exception):
            run_fuzz(
                self.runs,
                self.calls,
                self.seed,
                profile=injection.profile(),
                configurations=getattr(workload, self.configurations),
            )
        return seen.shortest


def _noting(seen: Sightings) -> Any:
    """Return what makes a program of a run, and notes it if there is a fault at its end."""
    sound = RecordedRun.program

    def program(recorded: RecordedRun, fault: BaseException | None = None) -> str:
        text = sound(recorded, fault)
        if fault is not None:
            calls = len(_CALL.findall(text))
            seen.note(Sighting("fuzz", (_words(fault),), calls, "calls", text))
        return text

    return program


_CALL = re.compile(r"^(?:\w+ = )*scheduler\.", re.MULTILINE)


def _words(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {str(fault).partition(chr(10))[0]}"


@frozen
class TransferFuzz:
    """Random workloads with transfers that fail, come late, twice or never, run to their end.

    Everybody must end, all blocks come back, and no token be computed from foreign KV.

    Attributes:
        workloads: what to draw, by its name in `kvproof.verify.transfer_workloads`.
        runs: how many at most.
        seed: which ones.
        noise: let the connector repeat ends, make some up, and lose loads.

    """

    workloads: str = "workloads"
    runs: int = 100
    seed: int = 1
    noise: bool = True

    @property
    def name(self) -> str:
        """Say what is run."""
        noise = "" if self.noise else ", no noise"
        return f"transfer fuzz of {self.workloads} ({self.runs} runs, seed {self.seed}{noise})"

    def look(self, injection: Injection) -> Sighting | None:
        """Return what went wrong in the first workload in which something did."""
        seen = Sightings()
        kind = NoisyConnector if self.noise else SimulatedConnector
        noisy = mock.patch.object(outcome, "SimulatedConnector", kind)
        with injection.planted(), noisy, quiet(), suppress(EnoughError, _WrongError):
            self._run(injection, seen)
        return seen.shortest

    def _run(self, injection: Injection, seen: Sightings) -> None:
        limits: Any = settings(
            max_examples=self.runs,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )

        def run(recording: Recording) -> None:
            found, last = _first_fault(recording, injection)
            if found is not None:
                seen.note(_of_workload(recording, found, last))
                raise _WrongError(found)

        drawn: Any = given(getattr(transfer_workloads, self.workloads)())
        limits(seed(self.seed)(drawn(run)))()


class _WrongError(Exception):
    """A workload that ended as it should not."""


def _first_fault(recording: Recording, injection: Injection) -> tuple[Difference | None, int]:
    """Return what goes wrong first, and the last step before it in which anything happened."""
    drain = outcome.Drain(recording, injection.profile(), outcome.Outcome())
    last, before = 0, ""
    for number, found in enumerate(drain.steps(), start=1):
        if found is not None:
            return found, last
        now = _picture(drain)
        last, before = (number if now != before else last), now
    return None, last


def _picture(drain: outcome.Drain) -> str:
    """Return what must change where work gets on: tokens, states and free blocks."""
    scheduler = drain.run.scheduler
    names = [item.request.request_id for item in drain.run.header.workload]
    states = [scheduler.status(name) for name in names]
    return f"{drain.outcome.tokens} {states} {scheduler.statistics().num_free_blocks}"


def _of_workload(recording: Recording, found: Difference, last: int) -> Sighting:
    """Return the fault, with the calls up to it; what comes after a freeze is nothing."""
    claim = f"{found.what}: expected {found.expected}; saw {found.seen}"
    steps = last + 1 if found.what == "end" else found.step
    calls = 2 * steps + len(recording.header.workload)
    return Sighting("transfer fuzz", (claim,), calls, "calls", repr(recording.header))


@frozen
class Aborts:
    """Requests that load from a folder and are aborted at random moments; contents are compared.

    Attributes:
        aborts: requests that are aborted.
        seed: which ones, when.
        steps_in_flight: as in the configuration.
        faults_percent: how often a connector has each fault that it can have.

    """

    aborts: int = 60
    seed: int = 5
    steps_in_flight: int = 1
    faults_percent: int = 0

    @property
    def name(self) -> str:
        """Say what is run."""
        flying = f"{self.steps_in_flight} in flight, {self.faults_percent} % faults"
        return f"abort trials ({self.aborts} aborts, seed {self.seed}, {flying})"

    def look(self, injection: Injection) -> Sighting | None:
        """Return what went wrong, or what was left behind."""
        seen = Sightings()
        with injection.planted(), quiet(), TemporaryDirectory() as folder:
            trials = AbortTrials(Path(folder), self.seed, self.steps_in_flight, self.faults_percent)
            claim = self._fault(trials)
        if claim:
            seen.note(Sighting("abort trials", (claim,), trials.steps, "steps"))
        return seen.shortest

    def _fault(self, trials: AbortTrials) -> str:
        try:
            figures = trials.run(self.aborts)
        except Exception as fault:  # whatever the runtime or a comparison raises
            return _words(fault)
        left = (figures.blocks_missing, figures.files_unusable)
        return "" if left == (0, 0) else f"left: expected no blocks and no torn files; saw {left}"
