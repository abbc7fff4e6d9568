"""Plant each fault in a process of its own, and run each check on the healthy house, too."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import partial

from attrs import field, frozen

from kvproof.verify.bugs.bug import Bug, Catcher
from kvproof.verify.bugs.injection import HEALTHY
from kvproof.verify.bugs.sighting import Sighting
from kvproof.verify.bugs.table import BUGS, BY_NAME, controls


@frozen
class Finding:
    """What became of one bug, or of one control.

    Attributes:
        name: of the bug, or of the check that was run on the healthy house.
        is_control: whether it is the latter.
        sighting: what was seen, if anything.
        claim: the expected one among what was seen.
        seconds: of the whole examination, the search for a shorter way included.
        error: what the check itself has raised.

    """

    name: str
    is_control: bool
    sighting: Sighting | None = None
    claim: str | None = None
    seconds: float = field(default=0.0, kw_only=True)
    error: str = field(default="", kw_only=True)

    @property
    def is_good(self) -> bool:
        """Whether a bug was caught as expected, or a control has seen nothing."""
        if self.error:
            return False
        return self.sighting is None if self.is_control else self.claim is not None


def examine(bug: Bug) -> Finding:
    """Plant a fault in this process, and let its check look."""
    start = time.perf_counter()
    sighting = bug.catcher.look(bug.injection)
    claim = None if sighting is None else bug.recognises(sighting)
    return Finding(bug.name, False, sighting, claim, seconds=time.perf_counter() - start)


def control(catcher: Catcher) -> Finding:
    """Let a check look at the healthy house."""
    start = time.perf_counter()
    sighting = catcher.look(HEALTHY)
    return Finding(catcher.name, True, sighting, seconds=time.perf_counter() - start)


Job = tuple[str, bool]  # a name, and whether it is that of a control


def jobs_of(bugs: Sequence[Bug]) -> list[Job]:
    """Return what is to be done: the controls first, for they take longest."""
    return [
        *((catcher.name, True) for catcher in controls(bugs)),
        *((bug.name, False) for bug in bugs),
    ]


def perform(job: Job) -> Finding:
    """Do one job in this process; whatever the check itself raises is part of the finding."""
    try:
        return _work(job)()
    except Exception as error:  # a check that breaks down has caught nothing
        return Finding(*job, error=f"{type(error).__name__}: {error}")


def _work(job: Job) -> Callable[[], Finding]:
    name, is_control = job
    if not is_control:
        return partial(examine, BY_NAME[name])
    by_name = {catcher.name: catcher for catcher in controls(BUGS)}
    return partial(control, by_name[name])


def run(bugs: Sequence[Bug], processes: int) -> Iterator[Finding]:
    """Yield what becomes of each bug and each control, as they end; each has its own process."""
    jobs = jobs_of(bugs)
    context = multiprocessing.get_context(_method())
    if _method() == "forkserver":
        context.set_forkserver_preload([__name__])
    executor = ProcessPoolExecutor(processes, context, max_tasks_per_child=1)
    futures = {executor.submit(perform, job): job for job in jobs}
    try:
        for future in as_completed(futures):
            yield _result(future, futures[future])
    finally:
        executor.shutdown(cancel_futures=True)


def _method() -> str:
    """Return how processes are made: by one that has imported all this, and nothing else."""
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def _result(future: Future[Finding], job: Job) -> Finding:
    error = future.exception()
    return (
        future.result() if error is None else Finding(*job, error=f"its process ended: {error!r}")
    )
