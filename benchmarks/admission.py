"""CPU time to admit a long prompt whose blocks are all cached but the last.

Two cases: the blocks are *idle* in the free queue, since their owner has ended; or they are in
*use*, since it still decodes. The time of `schedule` is that of the whole step, the decode of the
owner included. Hashing happens before, in `add_request`, and is measured apart for each algorithm.
`--json FILE` keeps the figures.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from pathlib import Path

from kvproof.runtime import Request, Scheduler, SchedulerConfig

BLOCK = 16
WARM_UP = 5


def admissions(tokens: int, rounds: int, algorithm: str, in_use: bool) -> dict[str, list[float]]:
    """Return the milliseconds of each part of each admission."""
    prompt = tuple(range(tokens))
    scheduler = filled(prompt, WARM_UP + rounds, algorithm, in_use)
    parts: dict[str, list[float]] = {"add_request": [], "schedule": []}
    for number in range(WARM_UP + rounds):
        marks = [time.process_time_ns()]
        scheduler.add_request(Request(f"request-{number}", prompt, 1))
        marks.append(time.process_time_ns())
        output = scheduler.schedule()
        marks.append(time.process_time_ns())
        hits = int(output.computed[-1])
        if tokens - hits > BLOCK:
            raise AssertionError(f"only {hits} of {tokens} tokens were found")
        scheduler.update(output, [0] * len(output.sampling_places))
        if number >= WARM_UP:
            parts["add_request"].append((marks[1] - marks[0]) / 1e6)
            parts["schedule"].append((marks[2] - marks[1]) / 1e6)
    return parts


def filled(prompt: tuple[int, ...], steps: int, algorithm: str, in_use: bool) -> Scheduler:
    """Return a scheduler that has computed the prompt; its owner decodes on, or has ended."""
    config = SchedulerConfig(
        num_blocks=4 * len(prompt) // BLOCK,
        block_size=BLOCK,
        max_num_batched_tokens=2 * len(prompt),
        max_model_len=2 * len(prompt),
        enable_prefix_caching=True,
        prefix_caching_hash_algo=algorithm,
    )
    scheduler = Scheduler(config)
    scheduler.add_request(Request("owner", prompt, steps + 2 if in_use else 1))
    scheduler.update(scheduler.schedule(), [0])
    return scheduler


def main() -> None:
    """Print a line for each algorithm and case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    gc.freeze()
    figures = {}
    print(f"milliseconds of CPU to admit {arguments.tokens:,} tokens, median (least, most)")
    print(f"{'hash':>12} {'hits':>6} {'add_request':>22} {'schedule':>22}")
    for algorithm in ("sha256", "xxh3", "sha256_cbor"):
        for hits, in_use in (("idle", False), ("in use", True)):
            parts = admissions(arguments.tokens, arguments.rounds, algorithm, in_use)
            figures[f"{algorithm}, {hits}"] = {n: statistics.median(v) for n, v in parts.items()}
            cells = (
                f"{statistics.median(v):7.2f} ({min(v):5.2f}, {max(v):5.2f})"
                for v in parts.values()
            )
            print(f"{algorithm:>12} {hits:>6} {' '.join(cells)}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
