"""Where vLLM is, if it is anywhere."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PYTHON = os.environ.get("KVPROOF_VLLM_PYTHON", sys.executable)
ROOT = Path(__file__).parents[2]
Run = Callable[..., None]


def vllm_is_there() -> bool:
    """Return whether the interpreter of the peers can import vLLM."""
    search = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    return subprocess.run([PYTHON, "-c", search], check=False).returncode == 0


@pytest.fixture(scope="session")
def beside_vllm() -> Run:
    """Return what runs a module of this folder, with arguments, where vLLM can be imported."""
    if not vllm_is_there():
        pytest.skip("vLLM is not importable here; tests/peers/README.md says how to install it")

    def run(module: str, *arguments: object) -> None:
        command = [PYTHON, "-m", f"tests.peers.{module}", *map(str, arguments)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]

    return run
