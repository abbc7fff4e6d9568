"""Options that several commands have."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvproof.runtime.profile import Profile

JOBS_MAX = 8
JOBS = min(os.cpu_count() or 1, JOBS_MAX)

Jobs = Annotated[
    int, typer.Option(min=1, metavar="N", help="Processes; by default one for each core.")
]


class ProfileName(StrEnum):
    """Whose rules the runtime follows."""

    VLLM_0_25_1 = "vllm-0.25.1"
    SAFE = "safe"


class FailurePolicy(StrEnum):
    """What becomes of a request whose load has failed."""

    RECOMPUTE = "recompute"
    FAIL = "fail"


WhenLoadsFail = Annotated[
    FailurePolicy, typer.Option(help="What becomes of a request whose load has failed.")
]


def profile_of(name: ProfileName) -> Profile:
    """Return the profile of a name."""
    from kvproof.runtime.profile import Profile

    return Profile.vllm_0_25_1() if name is ProfileName.VLLM_0_25_1 else Profile.safe()


def require_folder(file: Path | None) -> None:
    """Refuse a file that cannot be written because its folder is not there."""
    if file is not None and not file.parent.is_dir():
        raise typer.BadParameter(f"the folder {file.parent} does not exist; make it first.")
