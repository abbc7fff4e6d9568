"""Cycles in which nobody gains although everybody outside does his part: freezes and livelocks.

All calls of such a cycle are steps and their returns: an arrival or an abort is a gain, and so is a
token or an end. It must be *fair*, that is, what the scheduler may rely on must happen in it:

- steps are decided and come back: a cycle of calls has both, since few steps may be in flight;
- every load ends, and every send: whoever is being loaded (sent) is not in some state of the
  cycle. It may end in a failure each time, and it may be offered and begun again each time;
- whoever is answered "ask again" in it is answered otherwise in it too. Whoever is never asked
  must not rely on an answer.

Nothing is assumed of throttling: a throttled step serves decodes, and decodes come to an end.

Strongly connected components are taken apart: of one that is unfair because of answers, those
answers are left out, and what remains is looked at again (Streett's condition); for loads and
sends, a component whose every state has the same one pending has no fair cycle (Buechi's).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from attrs import define, frozen

from kvproof.verify.explorer.events import Event, Schedule
from kvproof.verify.explorer.graph import Graph


@frozen
class Cycle:
    """A fair cycle: the state where it is entered, and its calls, as places among idle calls."""

    entry: int
    edges: tuple[int, ...]


def fair_cycles(graph: Graph) -> Iterator[Cycle]:
    """Yield a short fair cycle of each component that has one."""
    pending = [_on_cycles(graph, range(len(graph.sources)))]
    while pending:
        edges = pending.pop()
        for component in _components(graph, edges):
            unanswered = _unanswered(graph, component)
            if unanswered:
                rest = [e for e in component if not _asks_again(graph, e) & unanswered]
                pending.append(_on_cycles(graph, rest))
            elif _transfers_end(graph, component):
                yield _short_cycle(graph, component)


def _on_cycles(graph: Graph, edges: Iterable[int]) -> list[int]:
    """Leave out calls that lead to a state without a way on, or from one without a way to it."""
    chosen = np.fromiter(edges, dtype=np.int64)
    sources, targets = np.array(graph.sources), np.array(graph.targets)
    while len(chosen):
        a, b = sources[chosen], targets[chosen]
        has_exit, has_entry = np.zeros(len(graph), np.bool_), np.zeros(len(graph), np.bool_)
        has_exit[a], has_entry[b] = True, True
        stays = has_exit[b] & has_entry[a]
        if stays.all():
            break
        chosen = chosen[stays]
    return chosen.tolist()  # type: ignore[no-any-return]


def _components(graph: Graph, edges: list[int]) -> Iterator[list[int]]:
    """Yield the calls within each strongly connected component (Tarjan, without recursion)."""
    out: dict[int, list[int]] = {}
    for edge in edges:
        out.setdefault(graph.sources[edge], []).append(edge)
    component_of = _Tarjan(graph, out).run()
    groups: dict[int, list[int]] = {}
    for edge in edges:
        component = component_of[graph.sources[edge]]
        if component == component_of.get(graph.targets[edge]):
            groups.setdefault(component, []).append(edge)
    yield from groups.values()


@define
class _Tarjan:
    graph: Graph
    out: dict[int, list[int]]

    def run(self) -> dict[int, int]:
        """Return a number of the component of each state."""
        index: dict[int, int] = {}
        low: dict[int, int] = {}
        found: dict[int, int] = {}
        stack: list[int] = []
        for root in self.out:
            if root in index:
                continue
            work = [(root, iter(self.out[root]))]
            index[root] = low[root] = len(index)
            stack.append(root)
            while work:
                node, edges = work[-1]
                child = self._unseen(node, edges, index, low, found)
                if child is not None:
                    index[child] = low[child] = len(index)
                    stack.append(child)
                    work.append((child, iter(self.out.get(child, ()))))
                    continue
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    while True:
                        member = stack.pop()
                        found[member] = node
                        if member == node:
                            break
        return found

    def _unseen(
        self,
        node: int,
        edges: Iterator[int],
        index: dict[int, int],
        low: dict[int, int],
        found: dict[int, int],
    ) -> int | None:
        """Return the next state that has not been seen, and take note of those that have."""
        for edge in edges:
            target = self.graph.targets[edge]
            if target not in index:
                return target
            if target not in found:
                low[node] = min(low[node], index[target])
        return None


def _asks_again(graph: Graph, edge: int) -> frozenset[str]:
    """Return who is answered "ask again" in a call."""
    call = graph.idle_calls[edge]
    answers = call.answers if isinstance(call, Schedule) else ()
    return frozenset(name for name, tokens, _ in answers if tokens is None)


def _answers(graph: Graph, edge: int) -> frozenset[str]:
    """Return who is answered otherwise in a call."""
    call = graph.idle_calls[edge]
    answers = call.answers if isinstance(call, Schedule) else ()
    return frozenset(name for name, tokens, _ in answers if tokens is not None)


def _unanswered(graph: Graph, edges: Iterable[int]) -> frozenset[str]:
    """Return who is always answered "ask again"."""
    asked, answered = set[str](), set[str]()
    for edge in edges:
        asked |= _asks_again(graph, edge)
        answered |= _answers(graph, edge)
    return frozenset(asked - answered)


def _transfers_end(graph: Graph, edges: Iterable[int]) -> bool:
    """Return whether each transfer is over in some state."""
    loading = sending = -1
    for edge in edges:
        loading &= graph.loading[graph.sources[edge]]
        sending &= graph.sending[graph.sources[edge]]
    return not (loading or sending)


def _short_cycle(graph: Graph, component: list[int]) -> Cycle:
    """Return a short fair cycle from the state of the component that is reached first."""
    return _Walk.within(graph, component).fair_cycle()


@define
class _Walk:
    """A walk within one component that is led past everything that fairness asks for."""

    graph: Graph
    out: dict[int, list[int]]
    entry: int

    @classmethod
    def within(cls, graph: Graph, component: list[int]) -> _Walk:
        """Return a walk that has not begun."""
        out: dict[int, list[int]] = {}
        for edge in component:
            out.setdefault(graph.sources[edge], []).append(edge)
        return cls(graph, out, min(out, key=lambda state: (graph.depths[state], state)))

    def fair_cycle(self) -> Cycle:
        """Go round once the shortest way, then further as long as it is not fair."""
        edges = self._to(self.entry, lambda e: self.graph.targets[e] == self.entry)
        while True:
            missing = self._missing(edges)
            if missing is None:
                return Cycle(self.entry, tuple(edges))
            edges += self._to(self.entry, missing)
            last = self.graph.targets[edges[-1]]
            if last != self.entry:
                edges += self._to(last, lambda e: self.graph.targets[e] == self.entry)

    def _missing(self, edges: list[int]) -> Callable[[int], bool] | None:
        """Return what a further call would have to be for the cycle to become fair."""
        graph = self.graph
        unanswered = _unanswered(graph, edges)
        if unanswered:
            return lambda e: bool(_answers(graph, e) & unanswered)
        loading = sending = -1
        for edge in edges:
            loading &= graph.loading[graph.sources[edge]]
            sending &= graph.sending[graph.sources[edge]]
        if loading:
            return lambda e: loading & ~graph.loading[graph.targets[e]] != 0
        if sending:
            return lambda e: sending & ~graph.sending[graph.targets[e]] != 0
        return None

    def _to(self, start: int, wanted: Callable[[int], bool]) -> list[int]:
        """Return the calls of a shortest way that ends with a wanted one."""
        before: dict[int, int] = {}
        queue, seen = deque([start]), {start}
        while queue:
            state = queue.popleft()
            for edge in self.out.get(state, ()):
                if wanted(edge):
                    return self._back(start, state, before, edge)
                target = self.graph.targets[edge]
                if target not in seen:
                    seen.add(target)
                    before[target] = edge
                    queue.append(target)
        raise ValueError("the component has no such call; it was said to be fair.")

    def _back(self, start: int, state: int, before: dict[int, int], edge: int) -> list[int]:
        edges = [edge]
        while state != start:
            edges.append(before[state])
            state = self.graph.sources[before[state]]
        return edges[::-1]


def way_of(graph: Graph, cycle: Cycle) -> tuple[tuple[Event, ...], tuple[Event, ...]]:
    """Return the calls of a shortest way to a cycle, and those of the cycle, from a step on."""
    to, round_ = graph.path(cycle.entry), [graph.idle_calls[edge] for edge in cycle.edges]
    while not isinstance(round_[0], Schedule):
        to.append(round_[0])
        round_ = [*round_[1:], round_[0]]
    return tuple(to), tuple(round_)
