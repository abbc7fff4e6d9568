"""The GGUF reader: what it reads, and that a damaged file is refused with a reason."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvproof.runtime.engine.gguf import GGUFError, GGUFFile

WriteGGUF = Callable[..., Path]
F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8

METADATA: dict[str, Any] = {
    "a.flag": True,
    "a.count": -3,
    "a.ratio": 0.25,
    "a.name": "caf\u00e9",
    "a.words": ["x", "", "yz"],
    "a.numbers": [1, 2, 3],
    "a.nothing": [],
}


def edited(path: Path, old: bytes, new: bytes) -> Path:
    """Replace bytes that occur exactly once."""
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_of_each_kind(write_gguf: WriteGGUF, version: int) -> None:
    """Booleans, numbers, strings and lists are read back as they were written."""
    file = GGUFFile(write_gguf(METADATA, version=version))

    assert dict(file.metadata) == METADATA
    assert file.get("a.count", int) == -3
    assert file.get("a.ratio", float) == 0.25
    assert file.get_list("a.words", str) == ["x", "", "yz"]
    assert file.get("a.missing", str, "default") == "default"


def test_every_number_type(tmp_path: Path) -> None:
    """Each width of integer and float is understood, unsigned and signed."""
    codes = {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, len(codes))
    for number, code in codes.items():
        content += struct.pack(f"<Q1sI{code}", 1, chr(97 + number).encode(), number, 1)
    path = tmp_path / "numbers.gguf"
    path.write_bytes(content)

    assert list(GGUFFile(path).metadata.values()) == [1] * len(codes)


@pytest.mark.parametrize(
    ("type_number", "worst"), [(F32, 0.0), (F16, 2e-3), (Q8_0, 2e-2), (Q4_1, 2.5e-1)]
)
def test_tensors_round_trip(write_gguf: WriteGGUF, type_number: int, worst: float) -> None:
    """A tensor comes back in its shape, within the rounding of its type, wherever it lies."""
    generator = np.random.default_rng(type_number)
    first = generator.normal(size=(1, 32)).astype(np.float32)
    second = generator.normal(size=(3, 64)).astype(np.float32)
    file = GGUFFile(write_gguf(METADATA, {"a": (first, type_number), "b": (second, type_number)}))

    for name, values in {"a": first, "b": second}.items():
        restored = file.values(name)
        assert restored.shape == values.shape
        assert float(np.abs(restored - values).max()) <= worst


def test_constant_blocks_round_trip(write_gguf: WriteGGUF) -> None:
    """Blocks of equal values, whose scale is zero, come back exactly."""
    zeros, twos = np.zeros((1, 32)), np.full((1, 32), 2.0)
    file = GGUFFile(write_gguf({}, {"z8": (zeros, Q8_0), "z4": (zeros, Q4_1), "t4": (twos, Q4_1)}))

    assert not file.values("z8").any()
    assert not file.values("z4").any()
    assert (file.values("t4") == 2.0).all()


@pytest.mark.parametrize("alignment", [1, 8, 256])
def test_alignment_of_the_file_is_kept(write_gguf: WriteGGUF, alignment: int) -> None:
    """A stated alignment other than 32 decides where the tensors begin."""
    first, second = np.arange(3, dtype=np.float32), np.arange(5, dtype=np.float32)
    metadata = {"general.alignment": alignment}
    file = GGUFFile(write_gguf(metadata, {"a": (first, F32), "b": (second, F32)}))

    assert all(info.offset % alignment == 0 for info in file.tensors.values())
    assert file.values("a").tolist() == first.tolist()
    assert file.values("b").tolist() == second.tolist()


def test_a_missing_file_is_the_usual_error(tmp_path: Path) -> None:
    """A path to nothing raises FileNotFoundError, as opening it would."""
    with pytest.raises(FileNotFoundError):
        GGUFFile(tmp_path / "none.gguf")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"GGUF", b"PK\3\4", "got magic .*, expected b'GGUF'; this is not a GGUF file"),
        (b"GGUF\3", b"GGUF\1", r"got version 1, expected one of \(2, 3\)"),
        (b"GGUF\3\0\0\0", b"GGUF\0\0\0\3", "got version 50331648"),
        (b"caf\xc3\xa9", b"caf\xff\xff", "a string is not UTF-8"),
        (struct.pack("<I?", 7, True), struct.pack("<I?", 13, True), "metadata type 13 is not"),
        (
            b"weight" + struct.pack("<IQ", 1, 32),
            b"weight" + struct.pack("<IQ", 5, 32),
            "5 dimensions",
        ),
        (struct.pack("<QIQ", 32, Q8_0, 0), struct.pack("<QIQ", 32, 2, 0), "type number 2 is not"),
        (struct.pack("<QIQ", 32, Q8_0, 0), struct.pack("<QIQ", 31, Q8_0, 0), "is not whole Q8_0"),
        (struct.pack("<QIQ", 32, Q8_0, 0), struct.pack("<QIQ", 64, Q8_0, 0), "ends at byte"),
        (struct.pack("<QIQ", 32, Q8_0, 0), struct.pack("<QIQ", 32, Q8_0, 1 << 62), "ends at byte"),
        (b"a.words" + struct.pack("<II", 9, 8), b"a.words" + struct.pack("<II", 9, 9), "type 9 is"),
    ],
)
def test_a_damaged_file_is_refused(
    write_gguf: WriteGGUF, old: bytes, new: bytes, message: str
) -> None:
    """Each damage is named, with the file and, in the header, the byte where it was met."""
    path = write_gguf(METADATA, {"weight": (np.ones(32), Q8_0)})

    with pytest.raises(GGUFError, match=message) as caught:
        GGUFFile(edited(path, old, new))

    assert str(path) in str(caught.value)


def test_a_bad_alignment_is_refused(write_gguf: WriteGGUF) -> None:
    """An alignment of zero cannot place a tensor."""
    with pytest.raises(GGUFError, match=r"general\.alignment: got 0, expected at least 1"):
        GGUFFile(write_gguf({"general.alignment": 0}))


def test_every_truncation_is_refused(write_gguf: WriteGGUF) -> None:
    """A file cut anywhere, from nothing to its last tensor byte, is refused as such."""
    path = write_gguf(METADATA, {"a": (np.ones(32), F32)})
    content = path.read_bytes()

    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(GGUFError, match=r"truncated|expected a GGUF file"):
            GGUFFile(path)


def test_random_damage_never_escapes(write_gguf: WriteGGUF) -> None:
    """A file with a changed byte is read or refused, and never fails in another way."""
    path = write_gguf(METADATA, {"a": (np.ones(32), Q8_0)})
    content = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    generator = np.random.default_rng(0)

    for place in range(len(content)):
        damaged = content.copy()
        damaged[place] ^= generator.integers(1, 256)
        path.write_bytes(damaged.tobytes())
        try:
            GGUFFile(path)
        except GGUFError:
            continue


def test_wrong_questions_are_answered_with_the_key(write_gguf: WriteGGUF) -> None:
    """Metadata that is missing or of another kind, and unknown tensors, are named."""
    file = GGUFFile(write_gguf(METADATA, {"a": (np.ones(32), F32)}))

    with pytest.raises(GGUFError, match=r"'a\.lost': missing, expected int"):
        file.get("a.lost", int)
    with pytest.raises(GGUFError, match=r"'a\.name': got str, expected int"):
        file.get("a.name", int)
    with pytest.raises(GGUFError, match=r"'a\.numbers': got list, expected a list of str"):
        file.get_list("a.numbers", str)
    with pytest.raises(GGUFError, match=r"no tensor 'b'; it has \['a'\]"):
        file.values("b")
