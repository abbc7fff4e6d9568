"""The core on disk is what the generator makes of the declaration now, byte for byte."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from difflib import unified_diff
from pathlib import Path

from kvproof.spec.declaration import Declaration
from kvproof.spec.digest import digest
from kvproof.spec.generator.files import generated_files
from kvproof.verify.core_text import core_folder
from kvproof.verify.verdict import Counterexample, Method, Result, Verdict

PROPERTY = "S7"
DIFF_LINES_MAX = 20

_DIGEST = re.compile(r'^DIGEST = "(.*)"', re.MULTILINE)


def check_freshness(declaration: Declaration, folder: Path | None = None) -> list[Result]:
    """Return that the core's digest is the declaration's, and each of its files the generator's.

    `folder` is where the core is; it is that of the package `kvproof.core` unless given.
    """
    where = folder or core_folder()
    files = generated_files(declaration)
    results = [_digest_is_current(declaration, where)]
    results += [_file_is_current(where, name, files) for name in sorted(files)]
    return [*results, *(_does_not_belong(name) for name in _strangers(where, files))]


def _digest_is_current(declaration: Declaration, folder: Path) -> Result:
    start = time.process_time()
    found = _DIGEST.search(_text(folder / "__init__.py"))
    seen, expected = found[1] if found else "none", digest(declaration)
    wrong = "" if seen == expected else f"core has the digest {seen}, the declaration {expected}"
    return _result("core has the digest of the declaration", wrong, start)


def _file_is_current(folder: Path, name: str, files: Mapping[str, str]) -> Result:
    start = time.process_time()
    seen = _text(folder / name)
    difference = "" if seen == files[name] else _short_diff(f"core/{name}", seen, files[name])
    return _result(f"core/{name} is as generated", difference, start)


def _does_not_belong(name: str) -> Result:
    wrong = f"no part of the declaration yields core/{name}; remove it, or run `kvproof generate`"
    return _result(f"core/{name} belongs to the core", wrong, time.process_time())


def _strangers(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Return the Python files that the generator does not write."""
    present = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.py")))
    return [name for name in present if name not in files]


def _result(name: str, wrong: str, start: float) -> Result:
    verdict = Verdict.REFUTED if wrong else Verdict.PROVED
    reason = Counterexample(wrong) if wrong else None
    seconds = time.process_time() - start
    return Result(name, PROPERTY, "", Method.TRANSLATION, verdict, seconds, reason)


def _text(path: Path) -> str:
    """Return a file's text with its line ends as they are; a missing file is an empty one."""
    return path.read_bytes().decode(errors="replace") if path.exists() else ""


def _short_diff(name: str, seen: str, expected: str) -> str:
    """Return the first lines of the difference; `repr` shows what differs only in line ends."""
    pair = (seen.splitlines(), expected.splitlines())
    lines = list(unified_diff(*pair, f"{name} (is)", f"{name} (declared)", lineterm="", n=1))
    if not lines:
        return f"{name} ends its lines otherwise: {seen[-20:]!r}, declared {expected[-20:]!r}"
    more = len(lines) - DIFF_LINES_MAX
    shown = lines[:DIFF_LINES_MAX] + ([f"... and {more} more lines"] if more > 0 else [])
    return "\n".join(shown)
