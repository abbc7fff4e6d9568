"""Group A: requests that hold what was loaded wait for each other, or a wait has no exit."""

from __future__ import annotations

from kvproof.runtime import running_pass
from kvproof.runtime.profile import LoadAdmission
from kvproof.runtime.scheduler import Scheduler
from kvproof.runtime.transfers import Transfers
from kvproof.verify.bugs import load_handlers as handlers
from kvproof.verify.bugs.bug import Bug, Unplanted, proved
from kvproof.verify.bugs.explorer_catcher import Explorer
from kvproof.verify.bugs.injection import dropped, patched, ruled
from kvproof.verify.bugs.run_catchers import Fuzz, TransferFuzz
from kvproof.verify.simulated_connector import SimulatedConnector

BUGS = (
    Bug(
        "A1",
        ("vllm#30659",),
        ruled(load_admission=LoadAdmission.WHOLE_PROMPT),
        Explorer(),
        "V5",
        "^freeze",
    ),
    Bug(
        "A2",
        ("vllm#45388",),
        ruled(load_admission=LoadAdmission.FITS),
        Explorer(),
        "V5",
        "^freeze",
    ),
    Bug(
        "A3",
        ("vllm#45406",),
        ruled(promotes_at_scan=True, lets_others_pass_loaded=True),
        Explorer(policy="priority"),
        "V3",
        "^freeze",
    ),
    Bug(
        "A4",
        ("vllm#57841",),
        ruled(lets_others_pass_loaded=True),
        Explorer(),
        "V4",
        "^freeze",
    ),
    Bug(
        "A5",
        ("vllm#48433",),
        ruled(load_admission=LoadAdmission.RESERVATION),
        Explorer(),
        "V5",
        "^freeze",
    ),
    proved(
        "A6",
        ("vllm#53130",),
        dropped("park_session without effect running[pool] := running[pool] - 1"),
        "L1",
        "running_is_counted",
    ),
    proved(
        "A7",
        ("vllm#39734", "vllm#35541", "RBLN-SW/vllm-rbln#957"),
        dropped("arrive without guard most + LOOKAHEAD <= TOTAL_BLOCKS * BLOCK_SIZE"),
        "V2",
        "fits_an_empty_pool",
    ),
    Bug(
        "A8",
        ("vllm#40707", "vllm#45414", "ascend#17195"),
        patched(
            running_pass,
            "_with_drafts",
            "rounds what a request gets down to an alignment",
            handlers.rounds_down,
        ),
        Fuzz("crowded"),
        "V1",
        "may not get",
    ),
    Bug(
        "A9",
        ("local-inference-lab/vllm#191",),
        patched(
            Transfers,
            "_received",
            "waits for another end of a load that has failed",
            handlers.waits_for_another_end,
        ),
        TransferFuzz(noise=False),
        "V7",
        "^end:",
    ),
    Bug(
        "A10",
        ("vllm#43433",),
        patched(
            Scheduler,
            "has_work",
            "does not count blocks that wait to be sent",
            handlers.falls_asleep,
        ),
        TransferFuzz(),
        "V8",
        "^free blocks:",
    ),
    Bug(
        "A11",
        ("vllm#56640",),
        patched(
            Transfers,
            "match",
            "parks a request of which there is nothing to load",
            handlers.parks_for_nothing,
        ),
        TransferFuzz(),
        "V7",
        "may not be loaded|^end:",
    ),
    Bug(
        "A12",
        ("vllm#50719",),
        patched(
            SimulatedConnector,
            "poll_of",
            "writes failed loads to a log and reports none",
            handlers.logs_failures,
        ),
        TransferFuzz(noise=False),
        "V7",
        "^end:",
    ),
    Bug(
        "A13",
        ("vllm#53250",),
        patched(
            SimulatedConnector,
            "match",
            "promises a load that works once a second time",
            handlers.promises_again,
        ),
        TransferFuzz("tight", seed=0),
        "V7",
        "^end:",
    ),
    Bug(
        "A14",
        ("vllm#50754",),
        patched(
            SimulatedConnector,
            "allocated",
            "tells nobody of a load that could not start",
            handlers.does_not_start,
        ),
        TransferFuzz(noise=False),
        "V7",
        "^end:",
    ),
    proved(
        "A16",
        ("trt#12542",),
        dropped("drain without guard pinned[e] == 0"),
        "S4",
        "pinned_is_kept",
    ),
    Bug(
        "A17",
        ("RBLN-SW/vllm-rbln#179",),
        patched(
            running_pass,
            "_serve_one",
            "preempts nobody for a request that lacks blocks",
            handlers.preempts_nobody,
        ),
        Fuzz("crowded"),
        "V1",
        "^Frozen|output.num_scheduled_tokens or",
    ),
    Bug(
        "A18",
        ("HabanaAI/vllm-fork#2247",),
        patched(
            running_pass,
            "_preempt",
            "leaves the victim among those that run",
            handlers.stays_in_the_list,
        ),
        Fuzz("crowded"),
        "L1",
        "may not be preempted|running_request_ids",
    ),
)

UNPLANTED = (
    Unplanted(
        "A15",
        ("vllm#23917",),
        "Here one connector reports for all its workers, so nobody adds up their reports.",
    ),
)
