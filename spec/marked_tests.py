"""Which tests show which rule: read from the text of the tests, none of which is imported.

A test says it with `@pytest.mark.rule("6", "vllm#43569")`, a whole file with `pytestmark`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

MARKER = "pytest.mark.rule"

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def folder_of_tests() -> Path | None:
    """Return the folder of the tests, or None where there is none, as in an installed wheel."""
    folder = Path(__file__).resolve().parents[1] / "tests"
    return folder if folder.is_dir() else None


def marked_tests(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return, for each rule that a marker names, the tests that are marked with it, in order."""
    found: dict[str, dict[str, None]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        node = path.relative_to(folder.parent).as_posix()
        for rule, test in markers(path.read_text(encoding="utf-8"), node):
            found.setdefault(rule, {})[test] = None
    return {rule: tuple(tests) for rule, tests in found.items()}


def markers(text: str, node: str) -> Iterator[tuple[str, str]]:
    """Yield each rule that a file names, with the test, class or file that the marker is on.

    Raises:
        ValueError: If a marker names nothing, or what it names is not written out.

    """
    yield from _markers_in(ast.parse(text), node)


def _markers_in(tree: ast.AST, node: str) -> Iterator[tuple[str, str]]:
    for part in ast.iter_child_nodes(tree):
        inside = f"{node}::{part.name}" if isinstance(part, Definition) else node
        if isinstance(part, ast.Call) and ast.unparse(part.func) == MARKER:
            for rule in _names(part, node):
                yield rule, node
        yield from _markers_in(part, inside)


def _names(call: ast.Call, node: str) -> list[str]:
    names = [item.value for item in call.args if isinstance(item, ast.Constant)]
    written = [name for name in names if isinstance(name, str)]
    if not written or len(written) < len(call.args) or call.keywords:
        raise ValueError(
            f'{node}, line {call.lineno}: saw {ast.unparse(call)}, expected {MARKER}("...", ...)'
            " with each rule written out."
        )
    return written
