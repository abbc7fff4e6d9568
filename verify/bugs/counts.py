"""Group D: blocks are freed twice, and counts of references and of free blocks go wrong."""

from __future__ import annotations

from kvproof.runtime.books import Books
from kvproof.runtime.free_queue import FreeQueue
from kvproof.runtime.prefix_index import PrefixIndex
from kvproof.runtime.transfers import Transfers
from kvproof.verify.bugs import count_handlers as handlers
from kvproof.verify.bugs.bug import Bug, proved
from kvproof.verify.bugs.injection import counts_first, dropped, patched
from kvproof.verify.bugs.proof_catchers import Translation
from kvproof.verify.bugs.run_catchers import Fuzz, TransferFuzz

BUGS = (
    proved(
        "D1",
        ("vllm#42571",),
        dropped("share without guard references[b] == 0 or block_table[r, b] == 0"),
        "S2",
        "entries_are_unique",
    ),
    proved(
        "D2",
        ("sgl-jax#982", "sgl#12224"),
        dropped("grow without effect held[r] := held[r] + 1"),
        "S2",
        "held_is_counted",
    ),
    Bug(
        "D3",
        ("ai-dynamo/dynamo#13398",),
        patched(FreeQueue, "put_first", "queues a block twice", handlers.queues_twice),
        Fuzz("crowded"),
        "S3",
        "the free queue and the core disagree",
    ),
    Bug(
        "D4",
        ("vllm#43226", "vllm#43265", "vllm#53631"),
        patched(
            Transfers,
            "_release",
            "asserts that whatever ends has an owner",
            handlers.asserts_an_owner,
        ),
        TransferFuzz(),
        "S5",
        "^AssertionError: .*no request",
    ),
    proved(
        "D5",
        ("ascend#14283", "ascend#14301"),
        dropped("continue_session without guard tokens >= 0"),
        "N1",
        "request_has_a_prompt",
    ),
    Bug(
        "D6",
        ("vllm#24228",),
        counts_first("grow", "counts before it looks"),
        Translation(("grow",)),
        "S7",
        "grow is translated",
    ),
    Bug(
        "D7",
        ("vllm#11565",),
        patched(
            Books,
            "num_shared",
            "counts hits that idle in the free queue as free blocks, too",
            handlers.counts_idle_hits_twice,
        ),
        Fuzz("sharing"),
        "S8",
        "only [0-9]+ are free|may not",
    ),
    proved(
        "D8",
        ("sgl#35270",),
        dropped("drain without effect referenced[pool] := referenced[pool] - [references[b] == 1]"),
        "S1",
        "conservation",
    ),
    Bug(
        "D9",
        ("ovg-project/kvcached#362", "vllm#4761"),
        patched(
            PrefixIndex,
            "remove",
            "finds a block under its old hash for ever",
            handlers.leaves_the_old_hash,
        ),
        Fuzz("sharing"),
        "S9",
        "may not share|events.differences",
    ),
    Bug(
        "D10",
        ("huggingface/text-generation-inference#1154", "predibase/lorax#545"),
        patched(
            Books,
            "growth",
            "works out what requests lack by another formula than their guard",
            handlers.rounds_blocks_down,
        ),
        Fuzz("crowded"),
        "S8",
        "may not get",
    ),
    proved(
        "D11",
        ("trt#13318",),
        dropped("schedule without guard tokens <= budget_left[step]"),
        "N5",
        "budget_left_minimum",
    ),
)
UNPLANTED = ()
