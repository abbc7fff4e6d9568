"""Workloads on several processes; each is explored in one, and the results come as they are ready.

Processes are forked where that exists, so that checks need not be pickled.
"""

from __future__ import annotations

import multiprocessing
import signal
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import Any

from attrs import evolve

from kvproof.verify.explorer.findings import Explored
from kvproof.verify.explorer.scope import Scope, Workload
from kvproof.verify.explorer.search import Search, Settings

_LOOK_EVERY = 0.2  # seconds
_FIGURES = 3  # of each process: states, transitions, states that wait


def in_processes(
    scope: Scope, workloads: Sequence[Workload], settings: Settings, jobs: int
) -> Iterator[Explored]:
    """Yield what became of each workload, in any order; end all processes when it is closed."""
    forks = "fork" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("fork" if forks else "spawn")
    figures, place = context.Array("q", jobs * _FIGURES, lock=False), context.Value("i", 0)
    silent = evolve(settings, watch=None)
    executor = ProcessPoolExecutor(jobs, context, _begin, (scope, silent, figures, place))
    with warnings.catch_warnings():
        # Python warns of threads in a process that forks; nothing here computes with them.
        warnings.simplefilter("ignore", DeprecationWarning)
        left = {executor.submit(_explore, workload) for workload in workloads}
    try:
        while left:
            done, left = wait(left, _LOOK_EVERY, FIRST_COMPLETED)
            if settings.watch is not None:
                settings.watch(*(sum(figures[n::_FIGURES]) for n in range(_FIGURES)))
            for future in done:
                yield future.result()
    finally:
        for process in list(executor._processes.values()) if left else []:
            process.terminate()
        executor.shutdown(cancel_futures=True)


_scope: Scope
_settings: Settings
_checked: set[bytes]


def _begin(scope: Scope, settings: Settings, figures: Any, place: Any) -> None:
    """Prepare a process; an interrupt from the keyboard ends it without a word."""
    global _scope, _settings, _checked
    with place.get_lock():
        first, place.value = place.value * _FIGURES, place.value + 1

    def watch(*numbers: int) -> None:
        figures[first : first + _FIGURES] = list(numbers)

    _scope, _settings, _checked = scope, evolve(settings, watch=watch), set()
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _explore(workload: Workload) -> Explored:
    return Search(_scope, workload, _settings, _checked).run()
