"""Group X: faults of the reference that were found by looking, without a public report."""

from __future__ import annotations

from kvproof.runtime import load_admission
from kvproof.runtime.prefix_cache import PrefixCache
from kvproof.runtime.step_results import StepResults
from kvproof.runtime.transfers import Transfers
from kvproof.spec.block_transitions import b
from kvproof.spec.rows import Transition
from kvproof.spec.variables import references
from kvproof.verify.bugs import unreported_handlers as handlers
from kvproof.verify.bugs.bug import Bug, Unplanted, proved
from kvproof.verify.bugs.explorer_catcher import Explorer
from kvproof.verify.bugs.injection import bent, dropped, patched, reassigned
from kvproof.verify.bugs.load_handlers import counts_twice
from kvproof.verify.bugs.mixed_catcher import Mixed
from kvproof.verify.bugs.run_catchers import Fuzz, TransferFuzz


def twice(row: Transition) -> Transition:
    """Take two references away for one entry."""
    return reassigned(row, references[b].becomes(references[b] - 2))


BUGS = (
    Bug(
        "X1",
        (),
        patched(
            load_admission,
            "blocks_for_all_known",
            "counts a request's own need once more, as that of others",
            counts_twice,
        ),
        Explorer(),
        "V5",
        "^freeze",
    ),
    Bug(
        "X2",
        (),
        patched(PrefixCache, "reset", "changes the index and then refuses", handlers.clears_first),
        Fuzz("sharing"),
        "S7",
        "the prefix index and the core disagree|events.differences",
    ),
    proved(
        "X3",
        (),
        bent("drain", "takes two references away for one", twice),
        "S2",
        "references_minimum",
    ),
    proved(
        "X4",
        (),
        dropped("park_session without effect stale[r] := last_frame[r]"),
        "L1",
        "waiting_wants_no_sample",
    ),
    Bug(
        "X5",
        (),
        patched(
            Transfers,
            "note_failures",
            "forgets what of a load was reported failed before",
            handlers.forgets_failures,
        ),
        TransferFuzz(seed=2),
        "S10",
        "^KV of",
    ),
    Bug(
        "X6",
        (),
        patched(
            Transfers,
            "note_failures",
            "takes no note of loads that are lost",
            handlers.forgives_losses,
        ),
        TransferFuzz(),
        "V7",
        "^failed loads",
    ),
    Bug(
        "X7",
        (),
        patched(
            StepResults,
            "ended_rows",
            "takes a session whose load has failed for one that is parked",
            handlers.parks_failed_sessions,
        ),
        Mixed(),
        "L5",
        "left are",
    ),
)
UNPLANTED: tuple[Unplanted, ...] = ()
