"""Recordings: what another scheduler was given, and what it decided step by step.

A file is JSON lines, gzipped or not: a header with format, configuration and workload, then a line
for each step. It is read whole and checked before anything is replayed.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from attrs import field, frozen

from kvproof.runtime import CallerError, Request, SchedulerConfig
from kvproof.runtime.connector import NOTHING_HAPPENED, TransferReport
from kvproof.verify.recorded_connector import RemoteKV
from kvproof.verify.recorded_line import Line, RecordingError
from kvproof.verify.step_record import Decision, Results, Snapshot, Step

FORMAT = "kvproof-recording/1"
STOP_TOKEN = 2
SIZE_MAX = 1 << 24


@frozen(kw_only=True)
class Arrival:
    """A request of the workload, when it comes, and when it is aborted if it is."""

    request: Request
    step: int
    remote: RemoteKV
    abort_before: int | None
    abort_during: int | None

    @property
    def is_aborted(self) -> bool:
        """Whether it is aborted, if it has not ended by then."""
        return self.abort_before is not None or self.abort_during is not None


@frozen(kw_only=True)
class Header:
    """The first line of a recording.

    Attributes:
        path: the file.
        made_by: the command that makes the file again.
        limits: the configuration, under the default profile.
        has_connector: whether KV could be loaded from elsewhere.
        workload: in the order in which it was listed.
        throttle: a pattern of 0 and 1 over the steps, repeated; empty for never.
        draft_acceptance: the share of draft tokens that are accepted.
        seed: of the draws which draft tokens are.
        verdict: "drained" if every request had ended after the last step.

    """

    path: Path
    made_by: str
    limits: SchedulerConfig
    has_connector: bool
    workload: tuple[Arrival, ...]
    throttle: str
    draft_acceptance: float
    seed: int
    verdict: str

    @property
    def arrivals(self) -> list[Arrival]:
        """The workload in the order of its arrivals."""
        return sorted(self.workload, key=lambda arrival: arrival.step)

    def throttles(self, step: int) -> bool:
        """Return whether prefills are throttled in a step, counted from 1."""
        pattern = self.throttle
        return bool(pattern) and pattern[(step - 1) % len(pattern)] == "1"


@frozen
class Recording:
    """A header and its steps."""

    header: Header
    steps: tuple[Step, ...] = field(repr=False)


def read_header(path: Path) -> Header:
    """Return the header of a recording.

    Raises:
        RecordingError: If the file cannot be read, is no recording or is of a scheduler with
            features that are not here; it names the file and the line.

    """
    first = next(_lines(path), None)
    if first is None:
        raise RecordingError(f"{path}: the file is empty; expected a header in line 1.")
    return _header(path, first)


def read_recording(path: Path) -> Recording:
    """Return a recording, read to its end.

    Raises:
        RecordingError: As `read_header`, or if a step is broken or missing.

    """
    header = read_header(path)
    steps = tuple(_step(line) for line in _lines(path, after=1))
    for place, step in enumerate(steps, start=1):
        if step.number != place:
            message = f"saw step {step.number}, expected step {place}; a line is missing or double."
            raise RecordingError(f"{path}:{place + 1}: {message}")
    _require_end(header, steps)
    return Recording(header, steps)


def _lines(path: Path, after: int = 0) -> Iterator[Line]:
    """Yield the lines behind the first `after`."""
    try:
        with _open(path) as file:
            for number, text in enumerate(file, start=1):
                if number > after:
                    yield Line.parse(path, number, text)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise RecordingError(f"{path}: cannot be read to its end: {error}") from error


def _open(path: Path) -> IO[str]:
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rt", encoding="utf-8") if is_gzip else path.open(encoding="utf-8")


# --- The header -----------------------------------------------------------------------------------


def _header(path: Path, line: Line) -> Header:
    if line.values.get("format") != FORMAT:
        line.refuse(f"format is {line.values.get('format')!r}; expected {FORMAT!r}.")
    config = line.part("config")
    config.only(_CONFIG, "it may change decisions, and cannot be replayed; use a newer kvproof.")
    return Header(
        path=path,
        made_by=line.text("made_by"),
        limits=_limits(config),
        has_connector=_is_on(config, "connector"),
        workload=_workload(line),
        throttle=_pattern(config),
        draft_acceptance=config.real("spec_accept", 0.0),
        seed=config.number("seed", 0),
        verdict=line.text("verdict"),
    )


def _limits(config: Line) -> SchedulerConfig:
    for name in ("num_blocks", "max_num_seqs"):
        if config.number(name) > SIZE_MAX:
            config.refuse(f"{name} is {config.number(name)}; expected at most {SIZE_MAX}.")
    try:
        return SchedulerConfig(
            num_blocks=config.number("num_blocks"),
            block_size=config.number("block_size"),
            max_num_seqs=config.number("max_num_seqs"),
            max_num_batched_tokens=config.number("max_num_batched_tokens"),
            max_model_len=config.number("max_model_len"),
            policy=config.text("policy"),
            enable_prefix_caching=config.flag("enable_prefix_caching"),
            long_prefill_token_threshold=config.number("long_prefill_token_threshold"),
            watermark=config.real("watermark"),
            scheduler_reserve_full_isl=config.flag("reserve_full_isl"),
            num_speculative_tokens=config.number("spec_tokens"),
            max_steps_in_flight=2 if _is_on(config, "async_scheduling") else 1,
            kv_load_failure_policy=(
                config.text("kv_load_failure_policy")
                if config.has("kv_load_failure_policy")
                else "recompute"
            ),
        )
    except CallerError as error:
        config.refuse(f"these limits are none: {error}")


def _is_on(config: Line, name: str) -> bool:
    """Return a feature that a recorder without it does not mention."""
    return config.has(name) and config.flag(name)


def _pattern(config: Line) -> str:
    pattern = config.text("throttle")
    if set(pattern) - {"0", "1"}:
        config.refuse(f"throttle is {pattern!r}; expected a pattern of 0 and 1, or nothing.")
    return pattern


def _workload(line: Line) -> tuple[Arrival, ...]:
    entries = line.parts("workload")
    names = [entry.text("id") for entry in entries]
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        line.refuse(f"the workload has the id {double[0]!r} twice; expected each once.")
    order = sorted(range(len(entries)), key=lambda place: entries[place].number("arrival_step", 0))
    turns = {place: turn for turn, place in enumerate(order, start=1)}
    return tuple(_arrival(entry, turns[place]) for place, entry in enumerate(entries))


def _arrival(entry: Line, turn: int) -> Arrival:
    """Return an entry of the workload that is the `turn`-th to arrive."""
    entry.only(_ENTRY, "it may change decisions, and cannot be replayed; use a newer kvproof.")
    step = entry.number("arrival_step", 0)
    request = Request(
        request_id=entry.text("id"),
        prompt_token_ids=entry.numbers("prompt_token_ids"),
        max_tokens=entry.number("max_tokens", 16),
        stop_token_ids={STOP_TOKEN},
        priority=entry.number("priority", 0),
        arrival_time=entry.real("arrival_time", step + 1e-6 * turn),
    )
    before, during = (entry.optional_number(name) for name in ("abort_step", "abort_mid_step"))
    return Arrival(
        request=request,
        step=step,
        remote=_remote(entry),
        abort_before=before,
        abort_during=during,
    )


def _remote(entry: Line) -> RemoteKV:
    return RemoteKV(
        tokens=entry.number("ext_tokens", 0),
        asynchronous=entry.flag("ext_async") if entry.has("ext_async") else True,
        unknown=entry.number("ext_unknown", 0),
        delay=entry.number("ext_delay", 1),
        failed_places=entry.numbers("ext_fail_blocks") if entry.has("ext_fail_blocks") else (),
        send_delay=entry.optional_number("send_delay"),
    )


# --- The steps ------------------------------------------------------------------------------------


def _step(line: Line) -> Step:
    decided = line.has("num_scheduled_tokens")
    updated = line.optional_number("update_of")
    if decided and "update_of" not in line.values:  # as recorders write it that know one step only
        updated = line.number("step")
    return Step(
        number=line.number("step"),
        throttled=line.flag("throttle"),
        decision=_decision(line) if decided else None,
        scheduled=_snapshot(line.part("after_schedule")) if decided else None,
        updated_step=updated,
        results=_results(line) if updated is not None else None,
        transfers=_transfers(line.part("kv_output")) if line.has("kv_output") else NOTHING_HAPPENED,
        updated=_snapshot(line.part("after_update")),
        free_queue=line.numbers("free_list") if line.has("free_list") else None,
    )


def _decision(line: Line) -> Decision:
    scheduled = line.counts("num_scheduled_tokens")
    return Decision(
        preempted=tuple(sorted(line.names("preempted"))),
        finished=tuple(sorted(line.names("finished"))),
        new=line.names("new"),
        resumed=line.names("resumed"),
        tokens_scheduled=scheduled,
        order_of_the_batch=tuple(scheduled),
        drafts_scheduled=line.counts("spec"),
        tokens_computed_before=line.counts("computed_at_schedule"),
        new_blocks=line.lists("new_block_ids"),
    )


def _transfers(line: Line) -> TransferReport:
    return TransferReport(
        received=line.names("finished_recving"),
        sent=line.names("finished_sending"),
        failed_blocks=line.numbers("invalid_block_ids"),
    )


def _snapshot(line: Line) -> Snapshot:
    """Read a state; one that has ended and only keeps blocks is no request any more."""
    requests = {
        name: request
        for name, request in line.parts_by_id("reqs").items()
        if not request.text("status").startswith("FINISHED")
    }
    return Snapshot(
        running=line.names("running"),
        waiting=line.names("waiting"),
        skipped=line.names("skipped") if line.has("skipped") else (),
        status={name: request.text("status") for name, request in requests.items()},
        tokens_known={name: request.number("tokens") for name, request in requests.items()},
        tokens_computed={name: request.number("computed") for name, request in requests.items()},
        preemptions={name: request.number("preemptions") for name, request in requests.items()},
        blocks={name: request.numbers("blocks") for name, request in requests.items()},
        free_blocks=line.number("free_blocks"),
        capacity_bound=line.flag("capacity_bound"),
    )


def _results(line: Line) -> Results:
    outputs = line.parts_by_id("outputs")
    return Results(
        tokens_accepted={name: output.numbers("tokens") for name, output in outputs.items()},
        ended={
            name: output.text("finish") for name, output in outputs.items() if output.has("finish")
        },
    )


def _require_end(header: Header, steps: tuple[Step, ...]) -> None:
    """Refuse a recording that says it drained and stops in the middle."""
    if header.verdict != "drained":
        return
    alive = list(steps[-1].updated.status) if steps else []
    to_come = [a.request.request_id for a in header.workload if a.step > max(len(steps), 1)]
    if alive or to_come or (header.workload and not steps):
        raise RecordingError(
            f"{header.path}: the verdict is 'drained', but after the last of {len(steps)} steps"
            f" there are still {(alive + to_come)[:5]}; lines are missing at the end."
        )


_CONFIG = frozenset(
    {
        *("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"),
        *("policy", "enable_prefix_caching", "long_prefill_token_threshold", "watermark"),
        *("reserve_full_isl", "throttle", "spec_tokens", "spec_accept", "seed"),
        # These decide nothing in a local run.
        *("async_scheduling", "connector", "kv_role", "kv_load_failure_policy"),
        *("log_stats", "check_kv"),
    }
)
_ENTRY = frozenset(
    {
        *("id", "arrival_step", "prompt_token_ids", "max_tokens", "priority", "arrival_time"),
        *("abort_step", "abort_mid_step"),
        *("ext_tokens", "ext_async", "ext_unknown", "send_delay"),
        # Of these a replay of decisions takes the recorded ends.
        *("ext_delay", "ext_fail_blocks"),
        # The recorded tokens say what these led to.
        *("prompt_len", "prompt_group", "stop_after"),
    }
)
