"""The tables and diagrams say everything that the declaration says."""

import re
from collections.abc import Iterator

import pytest

from kvproof.spec.diagram import dot, edges, mermaid
from kvproof.spec.properties import BY_NAME, PROPERTIES
from kvproof.spec.scheduler import SCHEDULER
from kvproof.spec.table import document, properties_table
from kvproof.spec.text import assignment_text, text

DOCUMENT = document(SCHEDULER)


def table_lines(markdown: str) -> Iterator[list[str]]:
    """Yield the lines of each table of a document."""
    for found in re.finditer(r"(?:^\|.*\|$\n?)+", markdown, flags=re.MULTILINE):
        yield found.group().splitlines()


def test_every_row_is_in_the_document() -> None:
    """Each row of the declaration has its name and its sentence in a table."""
    rows = (
        *((row.name, row.doc) for row in SCHEDULER.constants),
        *((row.name, row.doc) for row in SCHEDULER.variables),
        *((row.name, row.doc) for row in SCHEDULER.transitions),
        *((row.name, row.sentence) for row in SCHEDULER.all_invariants),
        *((row.name, row.sentence) for row in SCHEDULER.measures),
        *((row.name, row.sentence) for row in SCHEDULER.progress),
        *((row.name, row.sentence) for row in SCHEDULER.witnesses),
    )

    missing = [name for name, words in rows if not any(_on_a_line(name, words))]

    assert not missing


def _on_a_line(name: str, words: str) -> Iterator[bool]:
    for line in DOCUMENT.splitlines():
        yield re.search(rf"`{name}[`(]", line) is not None and words in line


def test_every_tree_is_in_the_document() -> None:
    """Each guard, effect, formula and measure is written out."""
    trees = (
        *(text(part) for row in SCHEDULER.transitions for part in row.guard),
        *(assignment_text(part) for row in SCHEDULER.transitions for part in row.effect),
        *(text(row.formula) for row in SCHEDULER.all_invariants),
        *(text(row.value) for row in SCHEDULER.measures),
        *(text(row.when) for row in SCHEDULER.progress),
    )

    assert [tree for tree in trees if f"`{tree}`" not in DOCUMENT] == []


def test_tables_are_well_formed() -> None:
    """Every line of a table has as many cells as its head, and none of them is empty."""
    for lines in table_lines(DOCUMENT + "\n" + properties_table(SCHEDULER)):
        widths = {len(re.split(r"(?<!\\)\|", line)) for line in lines}
        assert len(widths) == 1
        assert not any(re.search(r"\|\s*\|", line) for line in lines)


def test_every_property_is_stated_or_explained() -> None:
    """A property has rows that state it, or a sentence that says where it is shown; never both."""
    stated = {
        *(row.property for row in SCHEDULER.all_invariants),
        *(row.property for row in SCHEDULER.measures),
        *(row.property for row in SCHEDULER.progress),
    }

    assert stated <= set(BY_NAME)
    assert {item.name for item in PROPERTIES if not item.elsewhere} == stated


def test_the_properties_table_names_the_rows() -> None:
    """The line of a property names each row that states it."""
    lines = {
        line.split(" | ")[0].lstrip("| "): line for line in properties_table(SCHEDULER).splitlines()
    }

    for invariant in SCHEDULER.invariants:
        assert f"`{invariant.name}`" in lines[invariant.property]
    assert "comes with data parallelism" in lines["V11"]


def test_the_catalogue_is_complete() -> None:
    """The properties are S1 to S10, N1 to N6, L1 to L7 and V1 to V11, each once."""
    expected = [
        f"{letter}{number}"
        for letter, last in (("S", 10), ("N", 6), ("L", 7), ("V", 11))
        for number in range(1, last + 1)
    ]

    assert [item.name for item in PROPERTIES] == expected


def test_the_diagram_has_an_edge_for_each_source() -> None:
    """A row that moves from two states is two edges, and one that moves nobody is none."""
    assert list(edges(SCHEDULER)) == [
        (source.name, row.target.name, row.name)
        for row in SCHEDULER.transitions
        if row.target is not None
        for source in row.source
    ]
    assert "grow" not in mermaid(SCHEDULER)


@pytest.mark.parametrize(
    "edge",
    [
        "[*] --> WAITING : arrive",
        "PREEMPTED --> RUNNING : admit",
        "RUNNING --> PREEMPTED : preempt",
        "FINISHED_LENGTH --> [*] : retire",
    ],
)
def test_mermaid_shows_the_vacant_row_as_a_point(edge: str) -> None:
    """The state before a request arrives and after it retires is the point `[*]`."""
    diagram = mermaid(SCHEDULER)

    assert diagram.startswith("stateDiagram-v2\n")
    assert f"    {edge}\n" in diagram + "\n"
    assert "ABSENT" not in diagram


def test_dot_has_the_same_edges() -> None:
    """The Graphviz form has the edges of the Mermaid form, and its braces close."""
    diagram = dot(SCHEDULER)

    assert diagram.count(" -> ") == mermaid(SCHEDULER).count(" --> ")
    assert 'RUNNING -> PREEMPTED [label="preempt"];' in diagram
    assert diagram.startswith("digraph scheduler {")
    assert diagram.endswith("}")
