"""Random workloads with transfers that fail, come late, twice or never, and with aborts.

What becomes of one is found out by `kvproof.verify.outcome.run_to_end`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from attrs import define, evolve, field
from hypothesis import strategies as st

from kvproof.runtime import Request, SchedulerConfig
from kvproof.runtime.connector import TransferReport
from kvproof.verify.recorded_connector import RemoteKV
from kvproof.verify.recording import Arrival, Header, Recording
from kvproof.verify.simulated_connector import SimulatedConnector

ENDS = ("received", "failed blocks", "failed early", "sent", "lost")
seen: Counter[str] = Counter()


@define
class NoisyConnector(SimulatedConnector):
    """A connector that repeats ends, makes some up, and loses every third request's loads.

    Of another third it says early, block by block, what their loads do not fill, and only once.
    """

    _lost: set[str] = field(factory=set)
    _said: set[int] = field(factory=set)

    def poll_of(self, step: int) -> TransferReport:
        """Return what is due, and noise."""
        report = super().poll_of(step)
        lost = {name for name in report.received if _third(name) == 0}
        self._lost |= lost
        failed = report.failed_blocks - self._said
        self._said -= report.failed_blocks
        early = set(self._early())
        self._said |= early
        for kind, some in (
            ("received", report.received - lost),
            ("lost", lost),
            ("failed blocks", failed),
            ("failed early", early),
            ("sent", report.sent),
        ):
            seen[kind] += len(some)
        again = {name for name in self._loaded if name not in self._due()} - self._lost
        return evolve(
            report,
            received=(report.received - lost) | again | {"nobody"},
            sent=report.sent | {"nobody"},
            failed_blocks=failed | early,
            lost=lost | {"nobody"},
        )

    def _due(self) -> set[str]:
        return {load.request_id for _, load in self._loads}

    def _early(self) -> Iterator[int]:
        """Yield of each load that is said to fail early the first block that nobody knows of."""
        for _, load in self._loads:
            unsaid = sorted(load.failed_places)
            blocks = [load.blocks[p] for p in unsaid if load.blocks[p] not in self._said]
            if _third(load.request_id) == 1:
                yield from blocks[:1]


def _third(name: str) -> int:
    return sum(name.encode()) % 3


@st.composite
def remotes(draw: st.DrawFn, prompt: int) -> RemoteKV:
    """Return what can be loaded of a prompt, and what goes wrong."""
    return RemoteKV(
        tokens=draw(st.sampled_from((0, prompt, draw(st.integers(0, prompt))))),
        asynchronous=draw(st.booleans()),
        unknown=draw(st.sampled_from((0, 0, 1, 3))),
        delay=draw(st.integers(0, 4)),
        failed_places=tuple(draw(st.lists(st.integers(0, 4), max_size=2))),
        send_delay=draw(st.sampled_from((None, None, 0, 3))),
    )


@st.composite
def arrivals(draw: st.DrawFn, number: int) -> Arrival:
    """Return a request, when it comes, and when it is aborted if it is."""
    prompt = draw(st.integers(1, 14))
    stem = draw(st.sampled_from((0, 100 * number)))
    request = Request(
        f"r{number}",
        tuple(range(stem + 10, stem + 10 + prompt)),
        draw(st.integers(1, 6)),
        priority=draw(st.integers(0, 2)),
        arrival_time=float(number),
    )
    before, during = (draw(st.sampled_from((None, None, None, 2, 5, 9))) for _ in range(2))
    return Arrival(
        request=request,
        step=draw(st.integers(0, 6)),
        remote=draw(remotes(prompt)),
        abort_before=before,
        abort_during=during,
    )


@st.composite
def workloads(draw: st.DrawFn) -> Recording:
    """Return a workload that nobody has recorded."""
    limits = SchedulerConfig(
        num_blocks=draw(st.integers(11, 16)),
        block_size=2,
        max_num_seqs=draw(st.integers(1, 4)),
        max_num_batched_tokens=draw(st.integers(3, 16)),
        max_model_len=20,
        max_steps_in_flight=draw(st.integers(1, 3)),
        policy=draw(st.sampled_from(("fcfs", "priority"))),
        enable_prefix_caching=draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from((0, 0, 2))),
        watermark=draw(st.sampled_from((0.0, 0.1))),
        kv_load_failure_policy=draw(st.sampled_from(("recompute", "fail"))),
    )
    count = draw(st.integers(1, 6))
    workload = tuple(draw(arrivals(number)) for number in range(count))
    return _recording(limits, workload, draw(st.sampled_from(("", "", "0111"))))


@st.composite
def tight(draw: st.DrawFn) -> Recording:
    """Return a workload in a pool that holds one request or two, most of which are loaded."""
    limits = SchedulerConfig(
        num_blocks=11,
        block_size=2,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        max_model_len=20,
        max_steps_in_flight=draw(st.integers(1, 2)),
        policy=draw(st.sampled_from(("fcfs", "priority"))),
    )
    count = draw(st.integers(2, 4))
    return _recording(limits, tuple(draw(loaded(number)) for number in range(count)))


@st.composite
def loaded(draw: st.DrawFn, number: int) -> Arrival:
    """Return a request of which some part can mostly be loaded; nobody aborts it."""
    prompt, start = draw(st.integers(4, 14)), 10 + 100 * number
    remote = RemoteKV(
        tokens=draw(st.sampled_from((0, *[draw(st.integers(1, prompt))] * 3))),
        asynchronous=draw(st.sampled_from((True, True, True, False))),
        unknown=draw(st.sampled_from((0, 0, 2))),
        delay=draw(st.integers(0, 4)),
        send_delay=draw(st.sampled_from((None, None, 2))),
    )
    request = Request(
        f"r{number}",
        tuple(range(start, start + prompt)),
        draw(st.integers(1, 6)),
        priority=draw(st.integers(0, 1)),
        arrival_time=float(number),
    )
    return Arrival(
        request=request,
        step=draw(st.integers(0, 3)),
        remote=remote,
        abort_before=None,
        abort_during=None,
    )


def _recording(
    limits: SchedulerConfig, workload: tuple[Arrival, ...], throttle: str = ""
) -> Recording:
    header = Header(
        path=Path("drawn"),
        made_by="kvproof.verify.transfer_workloads",
        limits=limits,
        has_connector=True,
        workload=workload,
        throttle=throttle,
        draft_acceptance=0.0,
        seed=0,
        verdict="",
    )
    return Recording(header, ())
