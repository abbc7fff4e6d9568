"""The command `kvproof` and its subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

from kvproof import __version__
from kvproof.cli.bugs import bugs
from kvproof.cli.demo import demo
from kvproof.cli.explain import explain
from kvproof.cli.explore import explore
from kvproof.cli.generate import generate
from kvproof.cli.mutate import mutate
from kvproof.cli.replay import replay
from kvproof.cli.spec import spec
from kvproof.cli.verify import verify

application = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
application.command()(verify)
application.command()(spec)
application.command()(generate)
application.command()(demo)
application.command()(replay)
application.command()(bugs)
application.command()(explore)
application.command()(explain)
application.command()(mutate)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvproof {__version__}")
        raise typer.Exit


@application.callback()
def kvproof(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Declare once, prove, generate and run: a scheduler core for LLM inference."""
