"""The statistics of a scheduler as Prometheus metrics; needs `kvproof[metrics]`.

    from prometheus_client import REGISTRY
    REGISTRY.register(SchedulerCollector(scheduler))

Nothing is counted twice: a scrape reads `Scheduler.statistics()`. An alert on `kvproof_frozen`
tells a freeze from the step on in which it begins; `Scheduler.explain_all()` then says who waits
for what (wishes of vllm#56816 and vllm#53130).
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvproof.runtime.scheduler import Scheduler
from kvproof.runtime.statistics import Statistics


class SchedulerCollector(Collector):
    """Reads one scheduler whenever metrics are collected; `labels` tell several apart."""

    def __init__(self, scheduler: Scheduler, labels: dict[str, str] | None = None) -> None:
        """Collect from a scheduler; every metric has the labels, say {"rank": "0"}."""
        self._scheduler, self._labels = scheduler, dict(labels or {})

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with its value now."""
        statistics = self._scheduler.statistics()
        for name, text, value in _gauges(statistics):
            yield self._one(GaugeMetricFamily(name, text, labels=list(self._labels)), value)
        for name, text, value in _counters(statistics):
            yield self._one(CounterMetricFamily(name, text, labels=list(self._labels)), value)
        yield self._by_reason(statistics)

    def describe(self) -> list[Metric]:
        """Return nothing: registering reads no scheduler."""
        return []

    def _one(self, family: GaugeMetricFamily | CounterMetricFamily, value: float) -> Metric:
        family.add_metric(list(self._labels.values()), value)
        return family

    def _by_reason(self, statistics: Statistics) -> Metric:
        labels = [*self._labels, "reason"]
        text = "Requests that do not run, by what they wait for."
        family = GaugeMetricFamily("kvproof_requests_waiting_by_reason", text, labels=labels)
        for reason, count in statistics.num_requests_waiting_by_reason.items():
            family.add_metric([*self._labels.values(), reason], count)
        return family


Reading = tuple[str, str, float]


def _gauges(statistics: Statistics) -> Iterator[Reading]:
    yield "kvproof_requests_running", "Requests that run.", statistics.num_requests_running
    waiting = "Requests that wait for admission."
    yield "kvproof_requests_waiting", waiting, statistics.num_requests_waiting
    yield "kvproof_blocks_free", "Blocks that can be taken.", statistics.num_free_blocks
    fenced = "Blocks on their way back, which a frame or a transfer may still touch."
    yield "kvproof_blocks_fenced", fenced, statistics.num_fenced_blocks
    yield (
        "kvproof_kv_cache_usage",
        "Share of the blocks not free, 0 to 1.",
        statistics.kv_cache_usage,
    )
    frozen = "1 while nothing but an abort would let unfinished work go on."
    yield "kvproof_frozen", frozen, statistics.is_frozen


def _counters(statistics: Statistics) -> Iterator[Reading]:
    yield "kvproof_preemptions", "Preemptions.", statistics.num_preemptions
    freezes = "Freezes: work was unfinished and nothing was under way that could help."
    yield "kvproof_freezes", freezes, statistics.num_freezes
    queries = "Tokens looked up in the prefix cache, of requests never preempted."
    yield "kvproof_prefix_cache_queries", queries, statistics.prefix_cache_queries
    yield "kvproof_prefix_cache_hits", "Tokens of those found.", statistics.prefix_cache_hits
