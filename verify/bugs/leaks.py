"""Group C: blocks leak, or the signal that would release them is lost."""

from __future__ import annotations

from kvproof.core import Status
from kvproof.runtime import accounting, scheduler
from kvproof.runtime.transfers import Transfers
from kvproof.spec.statuses import RUNNING, WAITING
from kvproof.verify.bugs import leak_handlers as handlers
from kvproof.verify.bugs.bug import Bug, Unplanted, proved
from kvproof.verify.bugs.injection import also_from, counts_first, dropped, patched
from kvproof.verify.bugs.proof_catchers import Translation
from kvproof.verify.bugs.run_catchers import Fuzz, TransferFuzz
from kvproof.verify.simulated_connector import SimulatedConnector

BUGS = (
    Bug(
        "C1",
        ("vllm#46283",),
        patched(
            Transfers,
            "_lost",
            "does not release what an aborted request has left to a peer that is gone",
            handlers.loses_only_the_live,
        ),
        TransferFuzz(),
        "V7",
        "^end:|^free blocks:",
    ),
    Bug(
        "C2",
        ("ascend#16662",),
        patched(
            Transfers,
            "_received",
            "drops the ends of loads whose requests are gone",
            handlers.hears_only_the_live,
        ),
        TransferFuzz(),
        "S6",
        "^end:|^free blocks:",
    ),
    Bug(
        "C3",
        ("ascend#10098", "ascend#10843"),
        patched(
            SimulatedConnector,
            "finished",
            "keeps blocks of which nothing is to be sent",
            handlers.keeps_for_nothing,
        ),
        TransferFuzz(),
        "S6",
        "^end:",
    ),
    Bug(
        "C4",
        ("sgl#18701", "sgl#18705"),
        patched(
            scheduler,
            "_LIVE",
            "leaves out those that are preempted, so that no abort reaches them",
            handlers.without(Status.PREEMPTED),
        ),
        Fuzz("crowded"),
        "S6",
        "expected aborted ==",
    ),
    Bug(
        "C5",
        ("sgl-jax#984", "sgl-jax#1471"),
        patched(
            accounting,
            "abort",
            "leaves a request in the midst of its prompt in the running list",
            handlers.stays_while_it_prefills,
        ),
        Fuzz("crowded"),
        "S6",
        "running_request_ids",
    ),
    Bug(
        "C6",
        ("trt#5820",),
        patched(
            Transfers,
            "_lost",
            "keeps a request whose transfer is lost among the healthy ones",
            handlers.keeps_what_failed,
        ),
        TransferFuzz(noise=True),
        "V7",
        "^end:",
    ),
    proved(
        "C7",
        ("vllm#31857",),
        also_from("encode", "for a request that still waits", WAITING),
        "N4",
        "only_running_uses_entries",
    ),
    proved(
        "C8",
        ("lmc#1034", "vllm#35931", "vllm#44100", "lmc#2951"),
        also_from("share", "pins hits of a request that still waits", WAITING),
        "S6",
        "only_running_holds",
    ),
    proved(
        "C10",
        ("trt#15018",),
        also_from("retire", "removes a request that still runs", RUNNING),
        "S6",
        "only_running_holds",
    ),
    Bug(
        "C11",
        ("sgl#16067",),
        counts_first("encode", "takes its slots before it looks whether they can be had"),
        Translation(("encode",)),
        "S7",
        "encode is translated",
    ),
    proved(
        "C12",
        ("sgl#31765",),
        dropped("park_session without effect stopped[r] := false"),
        "L7",
        "waiting_is_incomplete",
    ),
)

UNPLANTED = (
    Unplanted(
        "C9",
        ("vllm#50425", "ascend#13929"),
        "A refused request has never been added, so the connector has heard nothing of it; that it"
        " tells its producer is the caller's part.",
    ),
)
