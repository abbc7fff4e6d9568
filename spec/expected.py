"""How far a request will be known once every frame in flight has come back."""

from kvproof.spec.expression import Formula, Index, Number, all_of, any_of, larger
from kvproof.spec.statuses import RUNNING
from kvproof.spec.variables import computed, decoding, known, status


def expected(owner: Index) -> Number:
    """Return the known tokens of a running request and those that frames in flight will bring.

    The difference to `known` is what vLLM calls output placeholders: a frame that computes all
    tokens there are brings one more, and the next frame may compute that one before it is known.
    Rule: vLLM AsyncScheduler._update_after_schedule.
    """
    return larger(known[owner], computed[owner] + 1)


def decodes(owner: Index) -> Formula:
    """Return whether a request runs and has its first sample, or a frame in flight brings it.

    Rule: vLLM Request.is_prefill_chunk.
    """
    return all_of(
        status[owner] == RUNNING, any_of(decoding[owner], computed[owner] >= known[owner])
    )
