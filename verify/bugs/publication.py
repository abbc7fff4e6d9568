"""Group H: prefixes that are found where they are not, and loads that fail."""

from __future__ import annotations

from attrs import evolve

from kvproof.runtime import transfer_ends
from kvproof.runtime.prefix_cache import PrefixCache
from kvproof.runtime.transfers import Transfers
from kvproof.spec.statuses import WAITING_FOR_REMOTE_KVS
from kvproof.verify.bugs import publication_handlers as handlers
from kvproof.verify.bugs.bug import Bug, Unplanted, proved
from kvproof.verify.bugs.injection import also_from, bent, dropped, patched, ruled
from kvproof.verify.bugs.run_catchers import Fuzz, TransferFuzz

BUGS = (
    Bug(
        "H1",
        ("vllm#49250",),
        ruled(recomputes_in_place=True, publishes_at_allocation=True),
        TransferFuzz(),
        "S9",
        "^KV of",
    ),
    Bug(
        "H2",
        ("vllm#18957",),
        patched(
            PrefixCache,
            "hits",
            "keeps the answer to a look-up for the next attempt",
            handlers.remembers_hits,
        ),
        Fuzz("sharing"),
        "S9",
        "may not share",
    ),
    proved(
        "H3",
        ("vllm#29387",),
        dropped("publish without guard (position + 1) * BLOCK_SIZE <= computed[r]"),
        "S9",
        "published_is_written",
    ),
    proved(
        "H4",
        ("vllm#37827",),
        also_from("publish", "shows blocks that are still being loaded", WAITING_FOR_REMOTE_KVS),
        "S9",
        "loaded_is_not_published",
    ),
    Bug(
        "H5",
        ("vllm#55092",),
        patched(
            PrefixCache,
            "evict",
            "says that a prefix is gone with the first of its copies",
            handlers.removes_first_copy,
        ),
        Fuzz("sharing"),
        "S9",
        "events.differences",
    ),
    Bug(
        "H7",
        ("taco-project/FlexKV#232",),
        patched(
            Transfers,
            "note_failures",
            "takes every load that has ended for whole",
            handlers.overlooks_failures,
        ),
        TransferFuzz(),
        "S9",
        "^KV of",
    ),
    Bug(
        "H8",
        ("ascend#16875", "ascend#16876"),
        patched(
            Transfers,
            "note_synchronous",
            "forgets that a load may still turn out to have failed",
            handlers.confirms_at_once,
        ),
        TransferFuzz(),
        "S9",
        "^KV of",
    ),
    Bug(
        "H9",
        ("lmc#2327",),
        patched(
            PrefixCache,
            "hits",
            "finds hits for every token of a prompt",
            handlers.finds_all,
        ),
        Fuzz("sharing"),
        "N1",
        "may not share",
    ),
    Bug(
        "H10",
        ("vllm#26813",),
        patched(
            transfer_ends,
            "_compute_anew",
            "withdraws blocks that others share and that are right",
            handlers.unpublishes_shared,
        ),
        TransferFuzz(seed=0),
        "S9",
        "shared_is_published",
    ),
    proved(
        "H12",
        ("vllm#43569",),
        bent(
            "publish_early",
            "is taken for one that publishes what is written",
            lambda row: evolve(row, breaks=()),
        ),
        "S9",
        "published_is_written",
    ),
)
UNPLANTED = (
    Unplanted(
        "H6",
        ("vllm#57159",),
        "An event names whole blocks of one group of layers, which can be fetched one by one.",
    ),
    Unplanted("H11", ("lmc#1969", "lmc#2007"), "It costs time and breaks no property."),
)
