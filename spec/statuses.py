"""The states of a request and the moves between them that are legal (property L2)."""

from kvproof.spec.expression import Choice, Formula
from kvproof.spec.rows import Enumeration

Status = Enumeration(
    "Status",
    "where a request is in its life",
    members=(
        ("ABSENT", "the row is vacant"),
        ("WAITING", "known to the scheduler, holds no block, has never run"),
        ("RUNNING", "may hold blocks and be scheduled"),
        ("PREEMPTED", "gave its blocks back and waits to be admitted again"),
        ("FINISHED_STOPPED", "sampled a stop token"),
        ("FINISHED_LENGTH", "reached its token limit"),
        ("FINISHED_ABORTED", "ended by its caller"),
    ),
)

ABSENT = Status["ABSENT"]
WAITING = Status["WAITING"]
RUNNING = Status["RUNNING"]
PREEMPTED = Status["PREEMPTED"]
FINISHED_STOPPED = Status["FINISHED_STOPPED"]
FINISHED_LENGTH = Status["FINISHED_LENGTH"]
FINISHED_ABORTED = Status["FINISHED_ABORTED"]

LIVE = (WAITING, RUNNING, PREEMPTED)
FINISHED = (FINISHED_STOPPED, FINISHED_LENGTH, FINISHED_ABORTED)

LEGAL_EDGES = (
    (ABSENT, (WAITING,)),
    (WAITING, (RUNNING, FINISHED_ABORTED)),
    (RUNNING, (PREEMPTED, FINISHED_STOPPED, FINISHED_LENGTH, FINISHED_ABORTED)),
    (PREEMPTED, (RUNNING, FINISHED_ABORTED)),
    (FINISHED_STOPPED, (ABSENT,)),
    (FINISHED_LENGTH, (ABSENT,)),
    (FINISHED_ABORTED, (ABSENT,)),
)


def live(status: Choice) -> Formula:
    """Return whether a request with this status is unfinished."""
    return status.is_in(*LIVE)


def queued_for_admission(status: Choice) -> Formula:
    """Return whether a request with this status waits to be admitted."""
    return status.is_in(WAITING, PREEMPTED)


def finished(status: Choice) -> Formula:
    """Return whether a request with this status has ended but still occupies its row."""
    return status.is_in(*FINISHED)
