"""Tasks on several processes: the results come as they are ready, and nothing is lost.

Processes are forked where that exists: a child then has the declaration and z3 at once.
Everything that forks happens before `in_processes` returns, so that a caller may start threads
(a live display has one) while the results come in.
"""

from __future__ import annotations

import multiprocessing
import signal
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing.context import BaseContext

from kvproof.verify.solvers import use
from kvproof.verify.task import Task, failed, perform
from kvproof.verify.verdict import Result

Finished = tuple[Task, list[Result]]

_tasks: Sequence[Task] = ()
_solver = ""


def in_this_process(tasks: Sequence[Task], solver: str) -> Iterator[Finished]:
    """Yield each task with its results, one after the other."""
    for task in tasks:
        with use(solver):
            results = perform(task)
        yield task, results


def in_processes(tasks: Sequence[Task], jobs: int, solver: str) -> Iterator[Finished]:
    """Start the processes, and return an iterator over tasks and results as they are ready."""
    count = min(jobs, len(tasks))
    executor = ProcessPoolExecutor(count, _context(), _begin, (tuple(tasks), solver))
    with warnings.catch_warnings():
        # Python warns of threads in a process that forks. Those of numpy and torch are for linear
        # algebra, which no check does.
        warnings.simplefilter("ignore", DeprecationWarning)
        futures = {executor.submit(_work, number): task for number, task in enumerate(tasks)}
    return _collected(executor, futures)


def _collected(
    executor: ProcessPoolExecutor, futures: dict[Future[list[Result]], Task]
) -> Iterator[Finished]:
    try:
        for future in as_completed(futures):
            yield futures[future], _results(futures[future], future)
    finally:
        executor.shutdown(cancel_futures=True)


def _results(task: Task, future: Future[list[Result]]) -> list[Result]:
    error = future.exception()
    return future.result() if error is None else [failed(task, f"its process ended: {error!r}")]


def _context() -> BaseContext:
    forks = "fork" in multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("fork" if forks else "spawn")


def _begin(tasks: Sequence[Task], solver: str) -> None:
    """Prepare a process; an interrupt from the keyboard ends it without a word."""
    global _tasks, _solver
    _tasks, _solver = tasks, solver
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _work(number: int) -> list[Result]:
    with use(_solver):
        return perform(_tasks[number])
