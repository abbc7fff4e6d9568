"""Prefill and decode in two processes with a real model: the same tokens as in one."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvproof.runtime import SchedulerConfig
from kvproof.runtime.connectors import disaggregated
from kvproof.runtime.connectors.disaggregated import (
    Workload,
    generate_alone,
    generate_disaggregated,
)

NewWorkload = Callable[[str], Workload]


@pytest.fixture
def new_workload(monkeypatch: pytest.MonkeyPatch) -> NewWorkload:
    """Return the way to make eight prompts for a scheduler of that name."""
    # The processes that are started import the plain scheduler, and inherit the path.
    monkeypatch.syspath_prepend(str(Path(__file__).parent))

    def make(scheduler: str) -> Workload:
        prompts = [
            [(7 * number + place * place) % 250 for place in range(5 + 9 * number)]
            for number in range(8)
        ]
        config = SchedulerConfig(num_blocks=80, block_size=8, max_model_len=256)
        make_scheduler: Any = (
            disaggregated.new_scheduler
            if scheduler == "real"
            else getattr(importlib.import_module("plain_scheduler"), scheduler)
        )
        return Workload(prompts, 12, config, make_scheduler=make_scheduler)

    return make


@pytest.mark.parametrize("scheduler", ["make", "real"], ids=["plain", "real"])
def test_two_processes_sample_what_one_does(new_workload: NewWorkload, scheduler: str) -> None:
    """Every request gets the tokens that it gets alone, from KV that another process computed."""
    workload = new_workload(scheduler)

    assert generate_disaggregated(workload, timeout_seconds=60) == generate_alone(workload)


def test_a_process_that_fails_is_named(new_workload: NewWorkload) -> None:
    """If one half fails the other is ended, and the caller hears of it."""
    with pytest.raises(RuntimeError, match="a process has failed"):
        generate_disaggregated(new_workload("fail"), timeout_seconds=60)
