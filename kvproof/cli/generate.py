"""`kvproof generate`: the Python of `core/`, written from the declaration."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from kvproof.cli.declared import declared


def generate(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; end with 1 and a diff if stale.")
    ] = False,
    stdout: Annotated[
        bool, typer.Option("--stdout", help="Print the files instead of writing them.")
    ] = False,
) -> None:
    """Write the generated core; only files that changed are written."""
    from kvproof.spec.generator import writer
    from kvproof.spec.generator.files import generated_files

    if check and stdout:
        raise typer.BadParameter("give --check or --stdout, not both.")
    files = generated_files(declared())
    if stdout:
        _print(files)
    elif check:
        _end_with(writer.difference(core_folder(), files))
    else:
        typer.echo("\n".join(writer.write(core_folder(), files)) or "nothing has changed")


def core_folder() -> Path:
    """Return the folder of the generated package, found without running what is in it."""
    found = find_spec("kvproof.core")
    if found is None or not found.submodule_search_locations:
        raise typer.BadParameter("the package kvproof.core is not installed; reinstall kvproof.")
    return Path(found.submodule_search_locations[0])


def _print(files: Mapping[str, str]) -> None:
    for name, text in sorted(files.items()):
        typer.echo(f"# core/{name}\n{text}")


def _end_with(difference: str) -> None:
    """End well where there is no difference, else print it and end with 1."""
    if difference:
        typer.echo(difference, nl=False)
        typer.echo("core/ is not what the declaration says; run `kvproof generate`.", err=True)
        raise typer.Exit(1)
    typer.echo("core/ is what the declaration says")
