"""The examples run as they stand and print what they promise."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "engine_loop.py"
LINES_MAX = 50


def test_the_engine_loop_runs() -> None:
    """Every request gets its tokens, some are preempted on the way, and all blocks come back."""
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    *replies, summary = done.stdout.splitlines()
    assert [reply.split(", ")[0] for reply in replies] == [
        f"request-{number}: 24 tokens" for number in range(8)
    ]
    found = re.fullmatch(r"(\d+) preemptions; 24 of 24 blocks are free again", summary)
    assert found is not None, summary
    assert int(found[1]) > 0


def test_the_engine_loop_is_short() -> None:
    """It fits on a page, and no line of it is too long for the README."""
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()

    assert len(lines) <= LINES_MAX
    assert max(map(len, lines)) <= 100
