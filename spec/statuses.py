"""The states of a request and the moves between them that are legal (property L2)."""

from kvproof.spec.expression import Choice, Formula
from kvproof.spec.rows import Enumeration

Status = Enumeration(
    "Status",
    "where a request is in its life",
    members=(
        ("ABSENT", "the row is vacant"),
        ("WAITING", "known to the scheduler, waits to be admitted"),
        ("RUNNING", "may hold blocks and be scheduled"),
        ("PREEMPTED", "gave its blocks back and waits to be admitted again"),
        ("WAITING_FOR_REMOTE_KVS", "parked with its blocks while KV is loaded into them"),
        ("WAITING_FOR_GRAMMAR", "parked until the grammar of its output is compiled"),
        ("WAITING_FOR_STREAMING", "a session parked until its caller sends the next input"),
        ("FINISHED_STOPPED", "sampled a stop token"),
        ("FINISHED_LENGTH", "reached its token limit"),
        ("FINISHED_ABORTED", "ended by its caller"),
        ("FINISHED_ERROR", "ended because its KV could not be loaded"),
    ),
)

ABSENT = Status["ABSENT"]
WAITING = Status["WAITING"]
RUNNING = Status["RUNNING"]
PREEMPTED = Status["PREEMPTED"]
WAITING_FOR_REMOTE_KVS = Status["WAITING_FOR_REMOTE_KVS"]
WAITING_FOR_GRAMMAR = Status["WAITING_FOR_GRAMMAR"]
WAITING_FOR_STREAMING = Status["WAITING_FOR_STREAMING"]
FINISHED_STOPPED = Status["FINISHED_STOPPED"]
FINISHED_LENGTH = Status["FINISHED_LENGTH"]
FINISHED_ABORTED = Status["FINISHED_ABORTED"]
FINISHED_ERROR = Status["FINISHED_ERROR"]

LIVE = (WAITING, RUNNING, PREEMPTED, WAITING_FOR_REMOTE_KVS)
PARKED = (WAITING_FOR_GRAMMAR, WAITING_FOR_STREAMING)
FINISHED = (FINISHED_STOPPED, FINISHED_LENGTH, FINISHED_ABORTED, FINISHED_ERROR)

LEGAL_EDGES = (
    (ABSENT, (WAITING,)),
    (WAITING, (RUNNING, WAITING_FOR_REMOTE_KVS, WAITING_FOR_GRAMMAR, FINISHED_ABORTED)),
    (
        RUNNING,
        (
            PREEMPTED,
            WAITING,
            WAITING_FOR_STREAMING,
            FINISHED_STOPPED,
            FINISHED_LENGTH,
            FINISHED_ABORTED,
            FINISHED_ERROR,
        ),
    ),
    (PREEMPTED, (RUNNING, WAITING_FOR_REMOTE_KVS, FINISHED_ABORTED)),
    (WAITING_FOR_REMOTE_KVS, (WAITING, PREEMPTED, FINISHED_ABORTED, FINISHED_ERROR)),
    (WAITING_FOR_GRAMMAR, (WAITING, FINISHED_ABORTED)),
    (WAITING_FOR_STREAMING, (WAITING, FINISHED_ABORTED)),
    (FINISHED_STOPPED, (ABSENT,)),
    (FINISHED_LENGTH, (ABSENT,)),
    (FINISHED_ABORTED, (ABSENT,)),
    (FINISHED_ERROR, (ABSENT,)),
)


def live(status: Choice) -> Formula:
    """Return whether a request with this status still wants tokens, and waits for no caller."""
    return status.is_in(*LIVE)


def queued_for_admission(status: Choice) -> Formula:
    """Return whether a request with this status waits to be admitted."""
    return status.is_in(WAITING, PREEMPTED)


def parked(status: Choice) -> Formula:
    """Return whether a request with this status waits for something outside the scheduler."""
    return status.is_in(*PARKED)


def finished(status: Choice) -> Formula:
    """Return whether a request with this status has ended but still occupies its row."""
    return status.is_in(*FINISHED)
