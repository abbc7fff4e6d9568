"""What the demo can be asked to do with connectors, and what does not go together."""

from __future__ import annotations

from enum import StrEnum

import typer


class Place(StrEnum):
    """Where KV is loaded from."""

    HOST = "host"
    FOLDER = "folder"
    PEER = "peer"


class Policy(StrEnum):
    """What becomes of a request whose load has failed."""

    RECOMPUTE = "recompute"
    FAIL = "fail"


def check(
    connector: Place | None,
    faults: bool,
    disaggregated: bool,
    is_random: bool,
    temperature: float,
) -> None:
    """Refuse options that do not go together.

    Raises:
        typer.BadParameter: It says which, and what to do; the command ends with 2.

    """
    if faults and connector is None:
        raise typer.BadParameter("--faults are those of a connector; give --connector, too.")
    if disaggregated and connector is not None:
        raise typer.BadParameter("saw --disaggregated and --connector; give one of them.")
    if (disaggregated or connector is Place.PEER) and not is_random:
        raise typer.BadParameter("both processes make the random model; leave out --model.")
    if disaggregated and temperature > 0:
        raise typer.BadParameter("--disaggregated takes the likeliest token; no --temperature.")
