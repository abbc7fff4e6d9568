"""The scheduler of vLLM, where it is installed: random workloads, decided twice, step by step."""

from pathlib import Path
from typing import Any

import pytest

from kvproof.runtime.profile import Profile
from kvproof.verify.outcome import Outcome, run_to_end
from kvproof.verify.recording import read_recording
from kvproof.verify.replay import replay

FIRST_SEED, COUNT = 0, 300


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory, beside_vllm: Any) -> list[Path]:
    """Let vLLM decide, and return what it was given and what it decided."""
    folder = tmp_path_factory.mktemp("recordings")
    beside_vllm("vllm_recorder", folder, FIRST_SEED, COUNT)
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
