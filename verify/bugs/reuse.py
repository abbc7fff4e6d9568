"""Group B: blocks are released or used again while something still touches them."""

from __future__ import annotations

from kvproof.runtime import accounting
from kvproof.runtime.fences import Fences
from kvproof.runtime.step_buffers import StepBuffers
from kvproof.runtime.transfers import Transfers
from kvproof.verify.bugs import reuse_handlers as handlers
from kvproof.verify.bugs.bug import Bug, Unplanted, proved
from kvproof.verify.bugs.injection import dropped, patched
from kvproof.verify.bugs.run_catchers import Aborts, Fuzz, TransferFuzz

BUGS = (
    proved(
        "B1",
        ("vllm#45357", "ascend#14055"),
        dropped("drain without guard until[e] <= returned[step]"),
        "S4",
        "touched_is_protected",
    ),
    proved(
        "B3",
        ("vllm#32255",),
        dropped("abort without effect pinned[e] := [loading[r]]"),
        "S4",
        "load_ends_or_is_waited_for",
    ),
    Bug(
        "B4",
        ("sgl#35049", "sgl#38961"),
        patched(
            Transfers,
            "ends",
            "takes a load for stopped when its request is aborted",
            handlers.stops_at_the_abort,
        ),
        TransferFuzz(seed=3),
        "S4",
        "^KV of",
    ),
    Bug(
        "B5",
        ("vllm#52360",),
        patched(
            Transfers,
            "frame_came_back",
            "tells of written blocks one step late",
            handlers.reports_late,
        ),
        Aborts(),
        "S4",
        "^WrongContentError",
    ),
    Bug(
        "B6",
        ("vllm#45704", "vllm#46278"),
        patched(
            Transfers,
            "published",
            "tells that blocks are written before the step has run",
            handlers.reports_at_dispatch,
        ),
        Aborts(),
        "N6",
        "^WrongContentError",
    ),
    Bug(
        "B8",
        ("trt#12540", "trt#12909"),
        patched(
            Fences,
            "_is_over",
            "waits for frames and for no transfer",
            handlers.overlooks_pins,
        ),
        TransferFuzz(),
        "S4",
        "is over but its blocks cannot be released",
    ),
    Bug(
        "B9",
        ("sgl#33547",),
        patched(
            StepBuffers,
            "fill_current",
            "leaves the tables of a step for later",
            handlers.flushes_late,
        ),
        Fuzz("in_flight", seed=2),
        "S4",
        "null block",
    ),
    Bug(
        "B10",
        ("vllm#38551", "vllm#45347", "vllm#39544"),
        patched(
            accounting,
            "_settled",
            "counts what steps in flight are still to compute",
            handlers.settles_ahead,
        ),
        Fuzz("in_flight"),
        "N4",
        "may not release encoder entry",
    ),
    proved(
        "B11",
        ("ai-dynamo/nixl#2067",),
        dropped("finish_error without effect pinned[e] := [loading[r]]"),
        "S4",
        "load_ends_or_is_waited_for",
    ),
    Bug(
        "B12",
        ("RBLN-SW/vllm-rbln#903",),
        patched(
            Fences,
            "__init__",
            "waits for no frame",
            handlers.waits_for_no_frame,
        ),
        Fuzz("in_flight"),
        "S4",
        "num_fenced_blocks",
    ),
)

UNPLANTED = (
    Unplanted(
        "B2",
        ("vllm#47728", "ascend#13501"),
        "There is no sliding window yet: a table gives up all of its blocks or none.",
    ),
    Unplanted(
        "B7",
        ("vllm#21570", "kvcache-ai/Mooncake#850"),
        "Nothing leases blocks: they are kept until they are sent, or the connector vouches that"
        " nobody reads them.",
    ),
)
