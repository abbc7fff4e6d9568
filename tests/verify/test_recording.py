"""Recordings: what is read from a file, and which files are refused, with file and line."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvproof.verify.recorded_line import RecordingError
from kvproof.verify.recording import STOP_TOKEN, read_header, read_recording

RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "recordings"
PREEMPT = RECORDINGS / "demo-preempt.jsonl.gz"

Lines = list[dict[str, Any]]
Change = Callable[[Lines], None]


def lines_of(path: Path) -> Lines:
    """Return the objects in a recording."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def written(folder: Path, lines: Lines) -> Path:
    """Write objects as a recording that is not compressed."""
    path = folder / "recording.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def changed(folder: Path, change: Change) -> Path:
    """Write a recording in which something has been changed."""
    lines = lines_of(PREEMPT)
    change(lines)
    return written(folder, lines)


def test_a_recording_is_read() -> None:
    """Configuration, workload and steps are there, in the runtime's own words."""
    recording = read_recording(PREEMPT)

    header, first = recording.header, recording.steps[0]
    assert (header.limits.num_blocks, header.limits.block_size) == (13, 4)
    assert [arrival.request.request_id for arrival in header.workload] == list_of_names(5)
    assert header.workload[0].request.stop_token_ids == {STOP_TOKEN}
    assert header.made_by == "record.py demo preempt"
    assert (len(recording.steps), header.verdict) == (27, "drained")
    assert first.decision is not None
    assert first.decision.tokens_scheduled == {"r0": 10, "r1": 10, "r2": 10, "r3": 2}
    assert first.updated.blocks["r3"] == (10,)


def list_of_names(count: int) -> list[str]:
    """Return the ids of a demo's requests."""
    return [f"r{number}" for number in range(count)]


def test_a_plain_file_reads_like_a_compressed_one(tmp_path: Path) -> None:
    """Whether a file is gzipped is seen from its first bytes, not from its name."""
    plain = read_recording(written(tmp_path, lines_of(PREEMPT)))

    assert plain.steps == read_recording(PREEMPT).steps


def test_requests_arrive_by_step_and_then_by_line(tmp_path: Path) -> None:
    """The default arrival time is the step and, within it, the turn among all arrivals."""

    def come_late(lines: Lines) -> None:
        lines[0]["workload"][0]["arrival_step"] = 2

    arrivals = read_header(changed(tmp_path, come_late)).arrivals

    assert [a.request.request_id for a in arrivals] == ["r1", "r2", "r3", "r4", "r0"]
    assert [a.request.arrival_time for a in arrivals] == pytest.approx(
        [1e-6, 2e-6, 3e-6, 4e-6, 2 + 5e-6], abs=1e-9
    )


def test_the_throttle_pattern_is_repeated() -> None:
    """Step 1 is the first of the pattern."""
    header = read_header(RECORDINGS / "demo-throttle.jsonl.gz")

    assert header.throttle == "0111"
    assert [header.throttles(step) for step in range(1, 7)] == [
        False,
        True,
        True,
        True,
        False,
        True,
    ]


def test_a_field_that_may_be_absent_has_its_default(tmp_path: Path) -> None:
    """An entry of the workload needs an id and a prompt; the rest has the recorder's defaults."""

    def forget(lines: Lines) -> None:
        lines[0]["workload"] = [{"id": "r0", "prompt_token_ids": [5, 6]}]

    (arrival,) = read_header(changed(tmp_path, forget)).workload

    assert (arrival.request.max_tokens, arrival.request.priority, arrival.step) == (16, 0, 0)
    assert not arrival.is_aborted


# --- Broken files ---------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_named() -> None:
    """A missing file and a folder are refused by name."""
    with pytest.raises(RecordingError, match=r"^none\.jsonl: cannot be read to its end: .*No such"):
        read_header(Path("none.jsonl"))
    with pytest.raises(RecordingError, match="cannot be read to its end"):
        read_header(RECORDINGS)


@pytest.mark.parametrize("cut", [1, 10, 200, 2000], ids=lambda cut: f"{cut} bytes")
def test_a_compressed_file_that_is_cut_is_refused(tmp_path: Path, cut: int) -> None:
    """Whatever is missing at the end of a gzip file, nothing of it is used."""
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(PREEMPT.read_bytes()[:-cut])

    with pytest.raises(RecordingError, match=r"cut\.jsonl\.gz: cannot be read to its end"):
        read_recording(path)


def test_a_compressed_file_that_is_damaged_is_refused(tmp_path: Path) -> None:
    """Bytes that were changed are noticed."""
    data = bytearray(PREEMPT.read_bytes())
    data[100:110] = bytes(10)
    path = tmp_path / "damaged.jsonl.gz"
    path.write_bytes(data)

    with pytest.raises(RecordingError, match=r"damaged\.jsonl\.gz"):
        read_recording(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty; expected a header in line 1"),
        (b"\xff\xfe\x00", "cannot be read to its end"),
        (b"not json\n", "recording.jsonl:1: expected a JSON object, saw 'not json"),
        (b"[1, 2]\n", r"recording.jsonl:1: expected a JSON object, saw \[1, 2\]"),
        (b"[" * 100_000, "recording.jsonl:1: expected a JSON object"),
        (b"{}\n", "recording.jsonl:1: format is None; expected 'kvproof-recording/1'"),
        (b'{"format": "other/2"}\n', "format is 'other/2'"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """A file without a header of the right format is refused with what was seen."""
    path = tmp_path / "recording.jsonl"
    path.write_bytes(content)

    with pytest.raises(RecordingError, match=message):
        read_recording(path)


def _set(*keys: Any, value: Any) -> Change:
    """Return a change of one value, the keys leading to it."""

    def change(lines: Lines) -> None:
        target: Any = lines
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value

    return change


def _drop(*keys: Any) -> Change:
    """Return a change that takes one value out, the keys leading to it."""

    def change(lines: Lines) -> None:
        target: Any = lines
        for key in keys[:-1]:
            target = target[key]
        del target[keys[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop(0, "config"), ":1: the field 'config' is missing; expected an object"),
        (_drop(0, "config", "num_blocks"), ":1: config: the field 'num_blocks' is missing"),
        (_set(0, "config", "num_blocks", value=1), ":1: config: these limits are none: num_blocks"),
        (_set(0, "config", "num_blocks", value=10**12), "expected at most 16777216"),
        (_set(0, "config", "policy", value="lottery"), "policy is 'lottery'; expected one of fcfs"),
        (_set(0, "config", "watermark", value="0"), 'watermark is "0"; expected a number'),
        (_set(0, "config", "throttle", value="02"), "throttle is '02'; expected a pattern of 0"),
        (_set(0, "config", "lora", value=True), "config: saw the unknown field 'lora'"),
        (_set(0, "workload", 1, "lora", value=1), r"workload\[1\]: saw the unknown field 'lora'"),
        (_drop(0, "workload", 2, "id"), r":1: workload\[2\]: the field 'id' is missing"),
        (_drop(0, "workload", 2, "prompt_token_ids"), "'prompt_token_ids' is missing"),
        (_set(0, "workload", 1, "id", value="r0"), "the workload has the id 'r0' twice"),
        (_set(0, "workload", value=[3]), r"workload is \[3\]; expected a list of objects"),
        (_drop(3, "after_update"), ":4: the field 'after_update' is missing"),
        (_drop(3, "after_update", "running"), ":4: after_update: the field 'running' is missing"),
        (_drop(3, "outputs"), ":4: the field 'outputs' is missing"),
        (_drop(3, "after_schedule", "reqs", "r1", "blocks"), "reqs.r1: the field 'blocks'"),
        (_set(3, "new", value="r1"), ':4: new is "r1"; expected a list of request ids'),
        (_set(3, "throttle", value=0), ":4: throttle is 0; expected true or false"),
        (_set(3, "num_scheduled_tokens", "r0", value=True), "expected whole numbers by request id"),
        (_set(3, "free_list", value=[1.0]), "expected a list of whole numbers"),
        (_drop(3), r":4: saw step 4, expected step 3; a line is missing or double"),
        (lambda lines: lines.insert(3, lines[3]), ":5: saw step 3, expected step 4"),
        (lambda lines: lines.__delitem__(slice(20, None)), "the verdict is 'drained', but after"),
        (lambda lines: lines.__delitem__(slice(1, None)), "after the last of 0 steps"),
    ],
)
def test_a_broken_recording_is_refused(tmp_path: Path, change: Change, message: str) -> None:
    """A field that is missing, of the wrong kind or unknown is refused with its line and path."""
    with pytest.raises(RecordingError, match=message):
        read_recording(changed(tmp_path, change))


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    """A line that is cut in the middle is refused by its number."""
    path = written(tmp_path, lines_of(PREEMPT))
    lines = path.read_text("utf-8").splitlines()
    lines[6] = lines[6][:50]
    path.write_text("\n".join(lines), "utf-8")

    with pytest.raises(RecordingError, match=r"recording\.jsonl:7: expected a JSON object, saw '"):
        read_recording(path)


def test_a_recording_that_froze_need_not_drain(tmp_path: Path) -> None:
    """With another verdict than "drained" the last step may leave requests behind."""

    def freeze(lines: Lines) -> None:
        lines[0]["verdict"] = "stuck"
        del lines[20:]

    assert len(read_recording(changed(tmp_path, freeze)).steps) == 19
