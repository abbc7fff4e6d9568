"""The generated core as it is on disk now, whatever a process has imported before."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Names = Mapping[str, Any]
Modules = Mapping[str, Names]

MODULES = ("rows", "batches")


def core_folder() -> Path:
    """Return the folder of the package `kvproof.core`."""
    spec = find_spec("kvproof.core")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the package kvproof.core is not installed; reinstall kvproof.")
    return Path(next(iter(spec.submodule_search_locations)))


def core_modules(given: Modules | None = None) -> Modules:
    """Return the names of the core's functions by module: those given, the others from disk."""
    given = given or {}
    return {name: given[name] if name in given else names_on_disk(name) for name in MODULES}


def names_on_disk(module: str) -> Names:
    """Return the names of a module of the core, from its text: a compiled file may be stale."""
    path = core_folder() / f"{module}.py"
    return names_in(path.read_text(encoding="utf-8"), str(path))


def names_in(text: str, file: str = "<core>") -> Names:
    """Return the names that a module's text defines."""
    names: dict[str, Any] = {"__name__": file}
    exec(compile(text, file, "exec"), names)
    return names
