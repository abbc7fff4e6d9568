"""What the demo can be asked to do with connectors, and what does not go together."""

from __future__ import annotations

from enum import StrEnum

import typer
from attrs import frozen

from kvproof.cli.options import FailurePolicy


class Place(StrEnum):
    """Where KV is loaded from."""

    HOST = "host"
    FOLDER = "folder"
    PEER = "peer"


@frozen
class Options:
    """What the command line says of the runs; `blocks` of None leaves the choice to the demo."""

    place: Place | None
    has_faults: bool
    policy: FailurePolicy
    is_disaggregated: bool
    blocks: int | None
    block_size: int
    debug: bool
    seed: int

    def check(self, is_random: bool, temperature: float) -> None:
        """Refuse options that do not go together.

        Raises:
            typer.BadParameter: It says which, and what to do; the command ends with 2.

        """
        if self.has_faults and self.place is None:
            raise typer.BadParameter("--faults are those of a connector; give --connector, too.")
        if self.is_disaggregated and self.place is not None:
            raise typer.BadParameter("saw --disaggregated and --connector; give one of them.")
        if (self.is_disaggregated or self.place is Place.PEER) and not is_random:
            raise typer.BadParameter("both processes make the random model; leave out --model.")
        if self.is_disaggregated and temperature > 0:
            raise typer.BadParameter("--disaggregated takes the likeliest token; no --temperature.")
