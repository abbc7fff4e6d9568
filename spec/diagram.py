"""The life of a request as a picture: one edge for each way a transition moves its subject."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.spec.declaration import Declaration

Edge = tuple[str, str, str]


def edges(declaration: Declaration) -> Iterator[Edge]:
    """Yield source, target and row for every declared move; a row with two sources has two."""
    for row in declaration.transitions:
        if row.target is not None:
            for source in row.source:
                yield source.name, row.target.name, row.name


def initial_state(declaration: Declaration) -> str:
    """Return the state that nothing has happened in."""
    value = declaration.state.initial
    return declaration.enumeration.members[value if isinstance(value, int) else 0][0]


def mermaid(declaration: Declaration) -> str:
    """Return the diagram in Mermaid's notation; `[*]` is the state before and after a life."""
    start = initial_state(declaration)
    shown = {start: "[*]"}
    lines = [
        f"    {shown.get(source, source)} --> {shown.get(target, target)} : {row}"
        for source, target, row in edges(declaration)
    ]
    return "\n".join(("stateDiagram-v2", *lines))


def dot(declaration: Declaration) -> str:
    """Return the diagram in Graphviz's notation."""
    nodes = [f'    {initial_state(declaration)} [shape=circle, label="", width=0.2];']
    arrows = [
        f'    {source} -> {target} [label="{row}"];' for source, target, row in edges(declaration)
    ]
    head = (f"digraph {declaration.name} {{", "    rankdir=LR;", "    node [shape=box];")
    return "\n".join((*head, *nodes, *arrows, "}"))
