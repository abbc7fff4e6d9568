"""The declaration as a command gets it: a mistake in it is a message, not a traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from kvproof.spec.declaration import Declaration


def declared() -> Declaration:
    """Return the scheduler's declaration, or end with 1 and the line that has a mistake."""
    from kvproof.spec.location import DeclarationError

    try:
        from kvproof.spec.scheduler import SCHEDULER
    except DeclarationError as error:
        typer.echo(f"refuted: the declaration is not well formed\n{error}", err=True)
        raise typer.Exit(1) from error
    return SCHEDULER
