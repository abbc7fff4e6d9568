"""Group G: preemption for nothing, livelock, and work that is put off without bound."""

from __future__ import annotations

from attrs import evolve

from kvproof.runtime import running_pass
from kvproof.spec.expected import decodes
from kvproof.spec.expression import all_of, total
from kvproof.spec.roles import step
from kvproof.spec.rows import Transition
from kvproof.spec.step_transitions import throttled, x
from kvproof.spec.variables import is_deferring
from kvproof.verify.bugs import thrash_handlers as handlers
from kvproof.verify.bugs.bug import Bug, Unplanted, proved
from kvproof.verify.bugs.injection import bent, dropped, patched, reassigned
from kvproof.verify.bugs.run_catchers import Fuzz


def without_capacity(row: Transition) -> Transition:
    """Defer prefills whenever somebody decodes, even if this rank has a backlog."""
    defers = all_of(throttled, total(x, decodes(x)) >= 1)
    return reassigned(row, is_deferring[step].becomes(defers))


BUGS = (
    proved(
        "G1",
        ("vllm#49674", "vllm#49675", "ascend#16315"),
        bent(
            "preempt_in_flight",
            "is taken for one that pays",
            lambda row: evolve(row, breaks=()),
        ),
        "V6",
        "preemption_pays_at_once",
    ),
    proved(
        "G2",
        ("vllm#25538", "vllm#37307", "vllm#18115"),
        dropped(
            "admit without guard known[r] + LOOKAHEAD <= (free[pool] + shared"
            " - (WATERMARK if running[pool] >= 1 else 0)) * BLOCK_SIZE"
        ),
        "S8",
        "admission_fits",
    ),
    proved(
        "G3",
        ("vllm#41951",),
        bent(
            "preempt_at_will",
            "is taken for one that keeps to the order of service",
            lambda row: evolve(row, breaks=()),
        ),
        "V10",
        "preemption_is_in_turn",
    ),
    Bug(
        "G4",
        ("sgl#14872", "sgl#15249"),
        patched(
            running_pass,
            "_serve_one",
            "passes over an urgent request that lacks blocks",
            handlers.passes_over,
        ),
        Fuzz("crowded"),
        "V1",
        "preempted_req_ids|num_scheduled",
    ),
    proved(
        "G5",
        ("GeeeekExplorer/nano-vllm#274", "sgl#15626", "sgl#19881"),
        dropped("arrive without guard prompt + max_tokens - 1 <= most"),
        "N1",
        "tokens_in_order",
    ),
    proved(
        "G9",
        ("vllm#44558",),
        bent("begin", "defers prefills although there is a backlog", without_capacity),
        "V10",
        "deferring_step_has_a_decode",
    ),
)
UNPLANTED = (
    Unplanted("G6", ("sgl#35241",), "There is one rank: data parallelism comes later."),
    Unplanted("G7", ("vllm#44794",), "No prefill is ever suspended, so there is no threshold."),
    Unplanted(
        "G8", ("trt#16827",), "It asks which of two policies to choose; neither breaks a property."
    ),
    Unplanted("G10", ("tenstorrent/vllm#394",), "There is one rank: data parallelism comes later."),
    Unplanted(
        "G11",
        ("vllm#57413",),
        "A bound on partial prefills is a wish; without one everybody still comes to an end.",
    ),
    Unplanted("G12", ("vllm#5578",), "Nothing is swapped: a preempted request is computed anew."),
)
