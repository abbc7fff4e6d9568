"""The scheduler of vLLM, where it is installed: random workloads, decided twice, step by step."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof.runtime.profile import Profile
from kvproof.verify.outcome import Outcome, run_to_end
from kvproof.verify.recording import read_recording
from kvproof.verify.replay import replay

RECORDER = Path(__file__).with_name("vllm_recorder.py")
FIRST_SEED, COUNT = 0, 300
PYTHON = os.environ.get("KVPROOF_VLLM_PYTHON", sys.executable)


def vllm_is_there() -> bool:
    """Return whether the interpreter that records can import vLLM."""
    search = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    return subprocess.run([PYTHON, "-c", search], check=False).returncode == 0


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Let vLLM decide, and return what it was given and what it decided."""
    if not vllm_is_there():
        pytest.skip("vLLM is not importable here; tests/peers/README.md says how to install it")
    folder = tmp_path_factory.mktemp("recordings")
    command = [PYTHON, str(RECORDER), str(folder), str(FIRST_SEED), str(COUNT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return sorted(folder.iterdir())


def test_vllm_decides_the_same(recordings: list[Path]) -> None:
    """On every random workload vLLM and the runtime under its profile agree in every step."""
    assert len(recordings) == COUNT
    for file in recordings:
        found = [item for item in replay(read_recording(file), Profile.vllm_0_25_1()) if item]

        assert found == [], file.name


def test_the_safe_rules_bring_every_workload_to_its_end(recordings: list[Path]) -> None:
    """Where vLLM's rules were recorded, ours end with the same tokens and all blocks back."""
    for file in recordings:
        outcome = Outcome()
        found = [i for i in run_to_end(read_recording(file), Profile.safe(), outcome) if i]

        assert found == [], file.name
