"""Group E: what a preemption, or a step in flight, leaves behind."""

from __future__ import annotations

from attrs import evolve

from kvproof.core import rows
from kvproof.runtime import accounting, running_pass, scheduler, waiting_pass
from kvproof.runtime.encoder_cache import EncoderCache
from kvproof.runtime.step_plan import StepPlan
from kvproof.spec.statuses import FINISHED_ABORTED, PREEMPTED, WAITING_FOR_REMOTE_KVS
from kvproof.verify.bugs import preemption_handlers as handlers
from kvproof.verify.bugs.bug import Bug, Unplanted, proved
from kvproof.verify.bugs.injection import also_from, bent, dropped, patched
from kvproof.verify.bugs.run_catchers import Fuzz, TransferFuzz

BUGS = (
    proved(
        "E1",
        ("vllm#48245", "vllm#30142", "vllm#41190"),
        dropped("preempt without guard last_frame[victim] <= processed[step]"),
        "N2",
        "waiting_wants_no_sample",
    ),
    proved(
        "E2",
        ("vllm#46066", "vllm#49860"),
        dropped("restart without effect stale[r] := last_frame[r]"),
        "N2",
        "waiting_wants_no_sample",
    ),
    Bug(
        "E3",
        ("vllm#26385", "vllm#27756"),
        patched(
            running_pass,
            "leave_untold",
            "forgets a running request that is left out of a step",
            handlers.tells_nobody,
        ),
        Fuzz("in_flight", calls=30, seed=21),
        "L6",
        "block_ids",
    ),
    Bug(
        "E4",
        ("vllm#30916", "vllm#31955"),
        patched(rows, "preempt", "leaves the victim its draft tokens", handlers.keeps_drafts),
        Fuzz("drafting"),
        "L6",
        "waiting_starts_over",
    ),
    Bug(
        "E5",
        ("vllm#28558",),
        patched(
            StepPlan,
            "forget",
            "leaves a victim in what the step is to do",
            handlers.keeps_the_plan,
        ),
        Fuzz("crowded"),
        "N3",
        "total_num_scheduled_tokens|req_ids",
    ),
    Bug(
        "E6",
        ("vllm#23347", "vllm#23713"),
        patched(
            running_pass,
            "_unschedule",
            "leaves a victim its tokens of the open step",
            handlers.leaves_scheduled,
        ),
        Fuzz("crowded"),
        "N3",
        "may not be preempted",
    ),
    proved(
        "E7",
        ("vllm#46899",),
        dropped(
            "dispatch without effect drafts[x] := (0 if scheduled[x] >= 1 else drafts[x])"
            " for every request x"
        ),
        "N1",
        "tokens_in_order",
    ),
    Bug(
        "E8",
        ("vllm-project/vllm-gaudi#1794",),
        patched(
            accounting,
            "_wanted",
            "drops every frame but the last one of a request",
            handlers.drops_older_frames,
        ),
        Fuzz("in_flight"),
        "N2",
        "for o in results",
    ),
    proved(
        "E9",
        ("sgl#20724",),
        dropped("preempt without effect decoding[victim] := false"),
        "L6",
        "waiting_starts_over",
    ),
    Bug(
        "E10",
        ("vllm#18631",),
        patched(
            waiting_pass,
            "_start",
            "forgets what was loaded for a request that has to wait",
            handlers.forgets_what_landed,
        ),
        TransferFuzz(),
        "S10",
        "was admitted but may not get",
    ),
    proved(
        "E11",
        ("vllm#18411",),
        dropped("preempt without effect held[victim] := 0"),
        "S6",
        "only_running_holds",
    ),
    Bug(
        "E12",
        ("RBLN-SW/vllm-rbln#676",),
        patched(
            scheduler,
            "schedule_running",
            "keeps blocks of which no worker knows for a request that has lost them",
            handlers.keeps_the_stash,
        ),
        Fuzz("in_flight", calls=30, seed=9),
        "L6",
        "block_ids",
    ),
    proved(
        "E13",
        ("trt#9931", "trt#9997"),
        also_from("preempt", "takes a victim that is preempted already", PREEMPTED),
        "L4",
        "running_is_counted",
    ),
    Bug(
        "E14",
        ("vllm#10013",),
        patched(
            EncoderCache,
            "let_go",
            "keeps the encoder entries of a victim",
            handlers.keeps_entries,
        ),
        Fuzz("encoding"),
        "N4",
        "but may not be parked|but may not finish|may not be preempted|may not be aborted",
    ),
    proved(
        "E15",
        ("vllm-project/vllm-omni#6053",),
        dropped("preempt without effect computed[victim] := 0"),
        "L6",
        "waiting_starts_over",
    ),
    proved(
        "E16",
        ("sgl-jax#1523",),
        also_from("admit", "takes a request that was aborted", FINISHED_ABORTED),
        "L3",
        "finished_absorbs",
    ),
    proved(
        "E17",
        ("vllm#45138",),
        bent(
            "cut",
            "is taken for one that leaves a decode a decode",
            lambda row: evolve(row, breaks=()),
        ),
        "N2",
        "decoding_has_computed",
    ),
    proved(
        "E18",
        ("vllm#46014",),
        also_from("admit", "takes a request whose load has not ended", WAITING_FOR_REMOTE_KVS),
        "L2",
        "only_parked_is_loaded",
    ),
)
UNPLANTED: tuple[Unplanted, ...] = ()
