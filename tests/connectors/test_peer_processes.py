"""Two processes and a link: blocks that cross it, and what is left when one of them dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("peer_process.py")
WAIT_SECONDS = 30.0
Start = Callable[..., "subprocess.Popen[str]"]
LOOPBACK_ONLY = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo", "UCX_LOG_LEVEL": "fatal"}

needs_nixl = pytest.mark.skipif(
    find_spec("nixl") is None, reason="the package nixl is not installed"
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return the way to start one end of a link; none outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def run(scenario: str, *transport: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(SCRIPT), str(tmp_path / "store"), scenario, *transport]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **LOOPBACK_ONLY}
        started.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> list[str]:
    """Wait until a process has ended by itself and well, and return the lines that it wrote."""
    output, _ = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0
    return [line for line in output.splitlines() if " NIXL " not in line]  # it logs there, too


def wait_for_line(process: subprocess.Popen[str], line: str) -> None:
    """Read what a process writes until it has written this line."""
    assert process.stdout is not None
    for written in process.stdout:
        if written.rstrip("\n") == line:
            return
    pytest.fail(f"the process has ended without writing {line!r}")


def test_blocks_cross_from_process_to_process(start: Start) -> None:
    """The consumer has the producer's blocks, both say so once, and both end by themselves."""
    producer, consumer = start("prefill"), start("decode")

    assert said(consumer) == ["received a", "lost", "again 0 False", "blocks 3 1 2", "threads 1"]
    assert said(producer) == ["kept True", "sent a", "threads 1"]


# What vllm#46283 reports.
@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSTOP])
def test_a_producer_that_dies_in_mid_transfer(start: Start, death: signal.Signals) -> None:
    """The load is lost, the pool is as it was, no thread is left, and the consumer ends."""
    producer, consumer = start("slow_prefill"), start("decode")
    wait_for_line(producer, "in mid-transfer")

    producer.send_signal(death)

    assert said(consumer) == ["received", "lost a", "again 0 False", "blocks 4 5 6", "threads 1"]


def test_an_engine_that_fails_can_leave(start: Start) -> None:
    """A consumer that never closes its connector ends nevertheless."""
    producer, consumer = start("slow_prefill"), start("decode_unclosed")
    wait_for_line(producer, "in mid-transfer")

    producer.kill()

    assert said(consumer) == ["received", "lost a", "again 0 False", "blocks 4 5 6"]


# What trt#5820 reports.
@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSTOP])
def test_a_consumer_that_dies_gives_the_blocks_back(start: Start, death: signal.Signals) -> None:
    """The producer reports its kept blocks as sent, once, and ends by itself."""
    producer, consumer = start("prefill"), start("idle_decode")
    wait_for_line(consumer, "heard")

    consumer.send_signal(death)

    assert said(producer) == ["kept True", "sent a", "threads 1"]


def test_a_consumer_that_dies_in_mid_transfer_gives_the_blocks_back(start: Start) -> None:
    """Blocks that are being sent are reported as sent once nobody reads them any more."""
    producer, consumer = start("slow_prefill"), start("decode")
    wait_for_line(producer, "in mid-transfer")

    consumer.kill()

    assert said(producer) == ["sent a", "threads 1"]


def test_processes_with_unequal_blocks_refuse_each_other(start: Start) -> None:
    """Both say which sizes met and what to do, and both end."""
    producer, consumer = start("prefill_refused"), start("decode_of_larger_blocks")

    assert "block_size is 8 there, expected 4 as here" in said(producer)[0]
    assert "block_size is 4 there, expected 8 as here" in said(consumer)[0]


@needs_nixl
def test_blocks_cross_through_nixl(start: Start) -> None:
    """The consumer reads the producer's pool by itself, and both ends say so once."""
    producer, consumer = start("prefill", "nixl"), start("decode", "nixl")

    assert said(consumer) == ["received a", "lost", "again 0 False", "blocks 3 1 2", "threads 1"]
    assert said(producer) == ["kept True", "sent a", "threads 1"]


@needs_nixl
def test_a_producer_that_dies_under_a_read_through_nixl(start: Start) -> None:
    """The read has ended in time or it is lost, whole or not at all, and the consumer ends."""
    _, consumer = start("dying_prefill", "nixl"), start("decode", "nixl")

    received, lost, again, *rest = said(consumer)

    assert again == "again 0 False"
    assert [received, lost, *rest] in (
        ["received", "lost a", "blocks 4 5 6", "threads 1"],
        ["received a", "lost", "blocks 3 1 2", "threads 1"],
    )
