"""A second explorer, as simple as can be: everything is done over again on a fresh scheduler.

It has no snapshots and no canonical keys; only the list of what can happen next is shared.
"""

from collections import deque

from kvproof.verify.explorer.events import Event
from kvproof.verify.explorer.machine import Machine
from kvproof.verify.explorer.scope import Scope, Workload

Way = tuple[Event, ...]


def naive_ways(scope: Scope, workload: Workload) -> list[Way]:
    """Return a way to every state; a shortest one to each."""
    ways: dict[str, Way] = {}
    queue: deque[Way] = deque([()])
    while queue:
        way = queue.popleft()
        if ways.setdefault(_view(_at(scope, workload, way)), way) is way:
            queue.extend((*way, event) for event in _events(scope, workload, way))
    return list(ways.values())


def _at(scope: Scope, workload: Workload, way: Way) -> Machine:
    any(map((machine := Machine(scope, workload)).follow, way))
    return machine


def _events(scope: Scope, workload: Workload, way: Way) -> list[Event]:
    machine = _at(scope, workload, way)
    found = list(machine.simple_events())
    scripts: list[tuple[bool, tuple[int, ...]]] = [(t, ()) for t in machine.throttles()]
    while scripts:
        throttled, script = scripts.pop()
        machine = _at(scope, workload, way)
        found.append(machine.schedule(throttled, script))
        options = [many for _, many in machine.connector.asked]
        if len(script) < len(options):  # a question that the script says nothing of
            more = [(*script, choice) for choice in range(options[len(script)])]
            scripts += [(throttled, longer) for longer in more]
    return found


def _view(machine: Machine) -> str:
    s, loading, books = machine.scheduler, machine.pending(), machine.books
    people = [(n, s.status(n), s.token_ids(n), s.num_computed_tokens(n), s.block_ids(n))
              for n in machine.names if s.status(n)]  # fmt: skip
    orders = s.running_request_ids(), s.waiting_request_ids(), s.skipped_request_ids()
    steps = [(output.num_scheduled_tokens, output.sampled_req_ids) for output in s._in_flight]
    again = [name for name, count in s.statistics().preemptions_by_request.items() if count]
    again += [name for name, row in books.table.row_of.items() if row in books.started_over]
    reported, failed = books.transfers and books.transfers.failed, books.state.request.load_failed
    loads = [(n, failed[row], (reported or {}).get(row)) for n, row in books.table.row_of.items()]
    step, pool = books.state.step, books.state.pool
    others = step.capacity_bound, pool.undecided, books.dropped_until > step.processed
    fences = [books.state.fence.fence_table.rows[fence].tolist() for fence in books.fences]
    return repr((people, loading, orders, steps, again, loads, others, fences, s.free_block_ids()))
