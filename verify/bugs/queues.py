"""Group F: who is in which queue, who is who, and the edges of a life."""

from __future__ import annotations

from attrs import evolve

from kvproof.core import Status
from kvproof.runtime import accounting, parking, scheduler
from kvproof.runtime.books import Books
from kvproof.runtime.transfers import Transfers
from kvproof.spec.statuses import FINISHED_ABORTED, LIVE
from kvproof.verify.bugs import queue_handlers as handlers
from kvproof.verify.bugs.bug import Bug, Unplanted, proved
from kvproof.verify.bugs.injection import also_from, bent, dropped, patched
from kvproof.verify.bugs.leak_handlers import without
from kvproof.verify.bugs.proof_catchers import Progress
from kvproof.verify.bugs.run_catchers import Fuzz, TransferFuzz

BUGS = (
    Bug(
        "F1",
        ("vllm#52693",),
        patched(
            parking,
            "continue_session",
            "queues a session twice",
            handlers.queues_twice,
        ),
        Fuzz("crowded"),
        "L1",
        "waiting_request_ids",
    ),
    Bug(
        "F2",
        ("vllm#42157",),
        patched(
            Books,
            "leave_queue",
            "leaves a request that has ended in its queue",
            handlers.leaves_the_entry,
        ),
        Fuzz("crowded"),
        "L1",
        "request_id|BrokenInvariant",
    ),
    proved(
        "F3",
        ("vllm#52969",),
        also_from("await_load", "takes a request that was aborted meanwhile", FINISHED_ABORTED),
        "L2",
        "legal_edges",
    ),
    proved(
        "F4",
        ("vllm#15326",),
        dropped("retire without effect known[r] := 0"),
        "L5",
        "absent_is_blank",
    ),
    Bug(
        "F5",
        ("vllm#53321",),
        bent(
            "abort",
            "does not reach those that are parked",
            lambda row: evolve(row, source=LIVE),
        ),
        Progress(),
        "V7",
        "parked_request_has_an_exit",
    ),
    proved(
        "F6",
        ("vllm#6586",),
        dropped("retire without guard last_frame[r] <= processed[step]"),
        "N2",
        "waiting_wants_no_sample",
    ),
    Bug(
        "F7",
        ("vllm#46476",),
        patched(
            accounting,
            "leave_running",
            "leaves a request that has ended among those that run",
            handlers.keeps_running,
        ),
        Fuzz("crowded"),
        "L1",
        "request_id|running_request_ids",
    ),
    Bug(
        "F8",
        ("torch-spyre/sendnn-inference#64",),
        patched(
            scheduler,
            "_LIVE",
            "leaves out those that wait for a grammar, so that no abort reaches them",
            without(Status.WAITING_FOR_GRAMMAR),
        ),
        Fuzz("crowded"),
        "S6",
        "expected aborted ==",
    ),
    Bug(
        "F9",
        ("vllm#56841",),
        patched(
            Transfers,
            "ends",
            "takes it that whoever ends has been given blocks",
            handlers.wants_blocks,
        ),
        TransferFuzz(),
        "S5",
        "^IndexError",
    ),
)
UNPLANTED: tuple[Unplanted, ...] = ()
