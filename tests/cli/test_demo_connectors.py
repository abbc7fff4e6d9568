"""The demo with connectors: loaded KV gives the same tokens, and nothing is left behind."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvproof.cli.application import application
from kvproof.cli.demo_aborts import Aborts
from kvproof.cli.demo_loads import LoadCounts
from kvproof.runtime.connectors.host_memory import HostMemoryConnector
from kvproof.runtime.connectors.observed import ObservedLoad
from kvproof.runtime.transfers import Transfers
from kvproof.verify.connector_faults import ConnectorFaults

SHORT = ("--requests", "8", "--max-tokens", "16")


@pytest.fixture(autouse=True)
def no_new_threads() -> Iterator[None]:
    """Fail if a thread that the demo started is still there at its end."""
    before = set(threading.enumerate())
    yield
    assert [thread.name for thread in threading.enumerate() if thread not in before] == []


def invoke(*arguments: str) -> Result:
    """Return what the command line does with these arguments after `demo`."""
    return CliRunner().invoke(application, ["demo", *arguments])


def complaint(result: Result) -> str:
    """Return the message of a usage error as one line, without the box around it."""
    return re.sub(r"[│╭╮╰╯─\s]+", " ", result.stderr)


def count(result: Result, label: str) -> int:
    """Return the last number in the last row of a table with this label."""
    return int(re.findall(rf"{label} +│.*│ +([\d,]+) │", result.stdout)[-1].replace(",", ""))


# --- The commands ---------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["host", "folder", "peer"])
def test_loaded_tokens_need_no_computing(place: str) -> None:
    """From each place something is loaded, all of it lands, and every token is the same."""
    result = invoke("--connector", place, *SHORT)

    assert result.exit_code == 0, result.output
    assert "equal: 8 requests, 128 tokens" in result.stdout
    assert count(result, "loads started") == count(result, "loads landed") > 0
    assert count(result, "loads failed") == count(result, "loads lost") == 0
    assert count(result, "tokens loaded, not computed") > 0
    assert len(re.findall("every block was returned", result.stdout)) == 1 + (place == "folder")


@pytest.mark.parametrize("place", ["host", "folder", "peer"])
def test_faults_and_aborts_leave_the_others_equal(place: str) -> None:
    """Whatever goes wrong with a load, who is not aborted samples what it samples alone."""
    result = invoke("--connector", place, "--faults", "--max-tokens", "32")

    assert result.exit_code == 0, result.output
    aborted = count(result, "requests aborted")
    assert 0 < aborted <= 2
    assert f"equal: {8 - aborted} requests" in result.stdout
    ended = [count(result, f"loads {end}") for end in ("landed", "failed", "lost")]
    assert count(result, "loads started") == sum(ended)
    assert result.stderr == ""


def test_a_request_may_fail_with_its_load() -> None:
    """With the policy `fail` requests whose loads went wrong are named, and the rest is equal."""
    result = invoke(
        "--connector", "host", "--faults", "--kv-load-failure-policy", "fail", "--max-tokens", "32"
    )

    assert result.exit_code == 0, result.output
    assert "every block was returned" in result.stdout


def test_two_processes_sample_what_one_does() -> None:
    """Prefill in one process and decode in another give the tokens of one."""
    result = invoke("--disaggregated", "--requests", "3", "--max-tokens", "6")

    assert result.exit_code == 0, result.output
    assert "equal: 3 requests, 18 tokens" in result.stdout


def test_a_scheduler_that_ignores_failures_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """If nobody takes note of failed blocks the demo ends with 1 and says which slot it is."""
    monkeypatch.setattr(Transfers, "note_failures", lambda *_: [])
    monkeypatch.setattr(ConnectorFaults, "all_kinds", lambda _: ConnectorFaults(failed=100))

    result = invoke("--connector", "folder", "--faults", "--max-tokens", "32")

    assert result.exit_code == 1
    assert re.search(r"refuted: request row \d+ would read slot", result.stderr)


def test_what_is_loaded_wrongly_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that are not what their hashes say end the demo with 1 and the first difference."""

    def swapped(connector: HostMemoryConnector, blocks: Any, places: Any, mark: Any) -> Any:
        for block in blocks:
            connector._memory.blocks[block].fill_(0.5)
        return ()

    monkeypatch.setattr(HostMemoryConnector, "_fill", swapped)

    result = invoke("--connector", "host", "--max-tokens", "32")

    assert result.exit_code == 1
    assert re.search(r"request-\d: token \d+ of the reply is \d+ with room", result.stdout)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--faults",), "--faults are those of a connector; give --connector, too."),
        (("--disaggregated", "--connector", "host"), "give one of them"),
        (("--disaggregated", "--model", "x.gguf"), "leave out --model"),
        (("--connector", "peer", "--model", "x.gguf"), "leave out --model"),
        (("--disaggregated", "--temperature", "1"), "no --temperature"),
        (("--connector", "disk"), "--connector"),
        (("--connector", "host", "--blocks", "2"), "lower max_tokens or enlarge the pool"),
        (("--connector", "host", "--kv-load-failure-policy", "hope"), "--kv-load-failure-policy"),
    ],
    ids=str,
)
def test_wrong_usage_is_refused(options: tuple[str, ...], message: str) -> None:
    """Wrong usage exits with 2 and says what to do."""
    result = invoke(*options)

    assert result.exit_code == 2
    assert message in complaint(result)


# --- Its parts ------------------------------------------------------------------------------------


def test_aborts_come_at_moments_of_the_seed() -> None:
    """The same seed aborts the same requests before the same steps, and not more than asked for."""
    names = [f"request-{number}" for number in range(8)]
    runs = [[some.now(names) for _ in range(200)] for some in (Aborts(2, 7), Aborts(2, 7))]

    assert runs[0] == runs[1]
    assert sum(map(len, runs[0])) == 2
    assert Aborts(1, 7).now([]) == []


def test_each_load_is_counted_once() -> None:
    """Whatever a load brings, it has started and landed, failed or been lost."""
    inner: Any = None
    counts = LoadCounts(inner, 4)
    load = ObservedLoad("a", (1, 2), 0, 8)
    for valid in (8, 4):
        counts.load_started(load)
        counts.load_ended(load, valid)
    counts.load_started(load)
    counts.load_lost(load)

    assert (counts.started, counts.landed, counts.failed, counts.lost) == (3, 1, 1, 1)
    assert counts.tokens_loaded == 12
