"""All workloads of a scope, in this process or in several, and what was found in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from kvproof.verify.explorer.findings import Check, Exploration, Explored, without_likes
from kvproof.verify.explorer.scope import Scope, Workload
from kvproof.verify.explorer.search import Search, Settings, Watch
from kvproof.verify.explorer.workers import in_processes


def explore(
    scope: Scope,
    *,
    jobs: int = 1,
    stop_at_first: bool = False,
    most_states: int | None = None,
    checks: Sequence[Check] = (),
    done: Sequence[Explored] = (),
    report: Callable[[Explored], None] | None = None,
    watch: Watch | None = None,
) -> Exploration:
    """Explore everything within a scope.

    Args:
        scope: the bound.
        jobs: processes; with 1 all happens in this one, so that what is patched here counts.
        stop_at_first: end with the first thing that is wrong.
        most_states: give a workload up beyond so many states.
        checks: what is asked of each call besides; with several processes they are forked.
        done: workloads that were explored before, and are not again.
        report: told of each workload when it is done.
        watch: told now and then of states, transitions and waiting states of those at work.

    """
    start = time.perf_counter()
    known = {part.workload: part for part in done}
    left = [workload for workload in scope.workloads() if workload not in known]
    parts = list(known.values())
    settings = Settings(stop_at_first, most_states, tuple(checks), watch)
    for part in _parts(scope, left, settings, jobs):
        parts.append(part)
        if report is not None:
            report(part)
        if stop_at_first and part.findings:
            break
    findings = without_likes([finding for part in parts for finding in part.findings])
    complete = len(parts) == len(known) + len(left) and all(part.is_complete for part in parts)
    return Exploration(scope, tuple(parts), time.perf_counter() - start, complete, findings)


def _parts(
    scope: Scope, left: Sequence[Workload], settings: Settings, jobs: int
) -> Iterator[Explored]:
    if jobs > 1 and len(left) > 1:
        yield from in_processes(scope, left, settings, jobs)
        return
    checked: set[bytes] = set()
    for workload in left:
        yield Search(scope, workload, settings, checked).run()
