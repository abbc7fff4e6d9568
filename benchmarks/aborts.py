"""Aborts at random moments with the folder connector, as many as you like: `--aborts 10000`.

It prints what has happened, and ends with 1 if a block has not come back, a file is half written or
a thread is left. With `--steps-in-flight 2` requests run ahead; with `--faults 5` loads go wrong.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import threading
import time
from pathlib import Path

import attrs

from kvproof.verify.abort_trials import AbortTrials


def main() -> int:
    """Run the trials that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--aborts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps-in-flight", type=int, default=1)
    parser.add_argument("--faults", type=int, default=0, metavar="PERCENT")
    wanted = parser.parse_args()
    logging.getLogger("kvproof").setLevel(logging.CRITICAL)
    before, began = set(threading.enumerate()), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        trials = AbortTrials(Path(folder), wanted.seed, wanted.steps_in_flight, wanted.faults)
        figures = trials.run(wanted.aborts)
    threads = [thread.name for thread in threading.enumerate() if thread not in before]
    for name, value in attrs.asdict(figures).items():
        print(f"{name.replace('_', ' '):>18}  {value}")
    print(f"{'threads left':>18}  {len(threads)}")
    print(f"{'seconds':>18}  {time.perf_counter() - began:.0f}")
    return 1 if threads or figures.files_unusable or figures.blocks_missing else 0


if __name__ == "__main__":
    sys.exit(main())
