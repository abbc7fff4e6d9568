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
        Format | None,
        typer.Option(
            "--format",
            help="All tables, the lifecycle as a diagram, or the table of properties.",
            show_default="markdown",
        ),
    ] = None,
    sources: Annotated[
        bool,
        typer.Option(
            "--sources", help="Print where each rule comes from: its rows, properties and tests."
        ),
    ] = False,
) -> None:
    """Print the declaration: every row, the diagram of a life, or where each rule comes from."""
    if sources and form is not None:
        raise typer.BadParameter("give --format or --sources, not both.")
    typer.echo(_sources() if sources else _written(form or Format.MARKDOWN))


def _written(form: Format) -> str:
    from kvproof.spec import diagram, table

    writers = {
        Format.MARKDOWN: table.document,
        Format.MERMAID: diagram.mermaid,
        Format.DOT: diagram.dot,
        Format.PROPERTIES: table.properties_table,
    }
    return writers[form](declared())


def _sources() -> str:
    from kvproof.spec.marked_tests import folder_of_tests
    from kvproof.spec.sources import sources_table

    return sources_table(declared(), folder_of_tests())
