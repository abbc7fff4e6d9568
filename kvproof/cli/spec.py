"""`kvproof spec`: the declaration as a document."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from kvproof.cli.declared import declared


class Format(StrEnum):
    """What the declaration can be printed as."""

    MARKDOWN = "markdown"
    MERMAID = "mermaid"
    DOT = "dot"
    PROPERTIES = "properties"


def spec(
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="All tables, the lifecycle as a diagram, or the table of properties.",
        ),
    ] = Format.MARKDOWN,
) -> None:
    """Print the declaration: every row, or the diagram of a request's life."""
    from kvproof.spec import diagram, table

    writers = {
        Format.MARKDOWN: table.document,
        Format.MERMAID: diagram.mermaid,
        Format.DOT: diagram.dot,
        Format.PROPERTIES: table.properties_table,
    }
    typer.echo(writers[form](declared()))
