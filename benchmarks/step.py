"""CPU time of one scheduler step in steady decode: schedule, tensors and update.

Every running request gets one token a step; block tables grow as they fill. The time is that of
this process (`time.process_time_ns`), the median over steps, with the tensors of the model built in
each. Every other step is measured in parts, and the others as a whole: reading the clock takes half
a microsecond. `--json FILE` keeps the figures.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kvproof.runtime import Request, Scheduler, SchedulerConfig

PROMPT = 512
BUDGET = 8192
WARM_UP = 50


def steady_decode(running: int, steps: int) -> dict[str, list[float]]:
    """Return the microseconds of each part of each step, with `running` requests decoding."""
    scheduler = filled(running, steps)
    parts: dict[str, list[float]] = {"schedule": [], "tensors": [], "update": [], "step": []}
    tokens = np.zeros(running, dtype=np.int64)
    for number in range(WARM_UP + steps):
        measured = _parts(scheduler, tokens) if number % 2 else _whole(scheduler, tokens)
        if number >= WARM_UP:
            for name, nanoseconds in measured.items():
                parts[name].append(nanoseconds / 1000)
    return parts


def _whole(scheduler: Scheduler, tokens: NDArray[np.int64]) -> dict[str, int]:
    start = time.process_time_ns()
    output = scheduler.schedule()
    output.to_tensors()
    scheduler.update(output, tokens)
    return {"step": time.process_time_ns() - start}


def _parts(scheduler: Scheduler, tokens: NDArray[np.int64]) -> dict[str, int]:
    start = time.process_time_ns()
    output = scheduler.schedule()
    scheduled = time.process_time_ns()
    output.to_tensors()
    filled = time.process_time_ns()
    scheduler.update(output, tokens)
    updated = time.process_time_ns()
    return {
        "schedule": scheduled - start,
        "tensors": filled - scheduled,
        "update": updated - filled,
    }


def filled(running: int, steps: int) -> Scheduler:
    """Return a scheduler whose requests have all computed their prompts."""
    filling = 32 + 2 * running * PROMPT // BUDGET
    length = PROMPT + filling + WARM_UP + steps
    config = SchedulerConfig(
        num_blocks=running * (length // 16 + 2) + 1,
        max_num_seqs=running,
        max_num_batched_tokens=BUDGET,
        max_model_len=length + 8,
    )
    scheduler = Scheduler(config)
    for number in range(running):
        # Prompts differ in length so that tables fill in different steps.
        prompt = range(1, PROMPT + number % 16)
        scheduler.add_request(Request(f"request-{number}", tuple(prompt), length - len(prompt)))
    output = scheduler.schedule()
    while output.num_requests < running or output.total_num_scheduled_tokens > running:
        output.to_tensors()
        scheduler.update(output, np.zeros(len(output.sampling_places), dtype=np.int64))
        output = scheduler.schedule()
    scheduler.update(output, np.zeros(running, dtype=np.int64))
    return scheduler


def main() -> None:
    """Print a line for each number of running requests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gc.freeze()
    figures = {}
    print("microseconds of CPU a step, median (90th percentile)")
    print(f"{'running':>8} {'schedule':>16} {'tensors':>16} {'update':>16} {'step':>16}")
    for running in arguments.running:
        parts = steady_decode(running, arguments.steps)
        figures[running] = {name: statistics.median(values) for name, values in parts.items()}
        cells = (
            f"{statistics.median(values):7.1f} ({np.percentile(values, 90):6.1f})"
            for values in parts.values()
        )
        print(f"{running:>8} {' '.join(cells)}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
