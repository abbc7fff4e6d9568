"""The fingerprint of a declaration: of its trees, not of the text that wrote them.

Comments, layout and line numbers leave it as it is. Every name, kind, bound, initial value, guard,
effect, formula, run and sentence changes it, because each ends up in a proof or in generated code.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from attrs import fields, has

from kvproof.spec.declaration import Declaration

LENGTH = 16

# Where a row was written, and whether mistakes were looked for, are not part of what it says.
_SILENT = {"where", "checked"}


def digest(declaration: Declaration) -> str:
    """Return the fingerprint, the same in every process for the same declaration."""
    text = json.dumps(_plain(declaration), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def _plain(value: Any) -> Any:
    """Return a value as lists, dictionaries, strings, numbers and truth values."""
    if has(type(value)):
        parts = {f.name: _plain(getattr(value, f.name)) for f in fields(type(value))}
        kept = {name: part for name, part in parts.items() if name not in _SILENT}
        return {"kind": type(value).__name__, "parts": kept}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, str | int):
        return value
    raise TypeError(f"{value!r} of type {type(value).__name__} is no part of a declaration")
