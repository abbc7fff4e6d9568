"""Metrics: what Prometheus scrapes is what the statistics say."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="needs kvproof[metrics]")

from prometheus_client import CollectorRegistry, generate_latest

from kvproof.runtime import Request, Scheduler, SchedulerConfig
from kvproof.runtime.metrics import SchedulerCollector


def scraped(scheduler: Scheduler, **labels: str) -> dict[str, float]:
    """Return each sample of a scrape, by name and labels."""
    registry = CollectorRegistry()
    registry.register(SchedulerCollector(scheduler, labels))
    lines = generate_latest(registry).decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_a_scrape_is_a_reading(new_loop: Any) -> None:
    """Each number of the statistics that has a metric is in it, with the labels."""
    loop = new_loop(num_blocks=7)
    loop.add("a", 5, 6)
    loop.add("b", 5, 6)
    loop.until(lambda output: output.preempted_req_ids)

    found, statistics = scraped(loop.scheduler, rank="3"), loop.scheduler.statistics()
    assert found['kvproof_requests_running{rank="3"}'] == statistics.num_requests_running == 1
    assert found['kvproof_requests_waiting{rank="3"}'] == statistics.num_requests_waiting == 1
    assert found['kvproof_blocks_free{rank="3"}'] == statistics.num_free_blocks
    assert found['kvproof_preemptions_total{rank="3"}'] == statistics.num_preemptions == 1
    reason = 'kvproof_requests_waiting_by_reason{rank="3",reason="capacity"}'
    assert found[reason] == 1
    assert found['kvproof_frozen{rank="3"}'] == 0


def test_a_freeze_is_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gauge is 1 while a freeze lasts, and a counter counts it once."""
    scheduler = Scheduler(SchedulerConfig(num_blocks=9), on_freeze=lambda _: None)
    scheduler.add_request(Request("a", (1, 2, 3), 3))
    with monkeypatch.context() as patch:
        patch.setattr("kvproof.runtime.scheduler.schedule_waiting", lambda books, plan: None)
        for _ in range(2):
            scheduler.update(scheduler.schedule(), {})
    assert scraped(scheduler)["kvproof_frozen"] == 1
    assert scraped(scheduler)["kvproof_freezes_total"] == 1

    scheduler.schedule()
    assert scraped(scheduler)["kvproof_frozen"] == 0
