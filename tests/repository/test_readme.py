"""What the README shows is what the commands print and what the examples say."""

import re
from pathlib import Path

import pytest

from kvproof.spec.diagram import mermaid
from kvproof.spec.scheduler import SCHEDULER
from kvproof.spec.table import properties_table

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"


def python_block(path: str) -> str:
    """Return a file as a block of Python."""
    return f"```python\n{(ROOT / path).read_text(encoding='utf-8').strip()}\n```"


PARTS = {
    "kvproof spec --format mermaid": f"```mermaid\n{mermaid(SCHEDULER)}\n```",
    "properties": properties_table(SCHEDULER),
    "examples/engine_loop.py": python_block("examples/engine_loop.py"),
    "examples/policies.py": python_block("examples/policies.py"),
}
COMMANDS = {
    "kvproof spec --format mermaid": "kvproof spec --format mermaid",
    "properties": "kvproof spec --format properties",
    "examples/engine_loop.py": "cat examples/engine_loop.py",
    "examples/policies.py": "cat examples/policies.py",
}


def between(text: str, marker: str) -> str | None:
    """Return what stands between a marker and the next end, without blank lines around it."""
    pattern = rf"<!-- {re.escape(marker)} -->\n(.*?)<!-- end -->"
    found = re.findall(pattern, text, flags=re.DOTALL)
    return found[0].strip("\n") if len(found) == 1 else None


@pytest.mark.parametrize("marker", PARTS)
def test_readme_shows_what_the_command_prints(marker: str) -> None:
    """Between its markers the README holds the output of the command, as it is now."""
    shown = between(README.read_text(encoding="utf-8"), marker)

    assert shown == PARTS[marker], (
        f"README.md: put the output of `{COMMANDS[marker]}` between `<!-- {marker} -->` and"
        " `<!-- end -->`, once (the diagram and the examples in a fence)"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\n<!-- x -->\n\nb\nc\n\n<!-- end -->\nd", "b\nc"),
        ("<!-- x -->\nb\n<!-- end -->\n<!-- y -->\nc\n<!-- end -->", "b"),
        ("<!-- x -->\nb\n", None),
        ("<!-- x -->\nb\n<!-- end -->\n<!-- x -->\nb\n<!-- end -->", None),
    ],
)
def test_a_part_is_found_only_between_its_markers(text: str, shown: str | None) -> None:
    """A part without an end, or one that stands twice, is not taken for the output."""
    assert between(text, "x") == shown
