"""The rules in which kvproof differs from vLLM 0.25.1, each with the report that shows why."""

from __future__ import annotations

from typing import Self

from attrs import frozen


@frozen(kw_only=True)
class Profile:
    """Which rules a scheduler follows; the default is safe, and is what is proved.

    Attributes:
        publishes_at_allocation: a block's hash is published when the block is allocated, before
            its content is written; a victim of the same step can come back to blocks that nobody
            wrote, and samples wrong tokens (vllm#43569, vllm#57580). Safe: published once a
            dispatched step is certain to have written it.
        accepts_what_never_fits: a request larger than the pool waits for ever and blocks all
            behind it (vllm#39734, vllm#35541). Safe: refused at its arrival.
        drafts_beyond_limit: draft tokens are scheduled past the last token that the request may
            sample, so that a request can need more blocks than the pool has. Safe: cut.
        skips_after_early_victim: a victim that the pass had passed over moves the pass on by one
            request. Safe: nobody is passed over.
        drops_half_read_repeats: a request that shows an item twice gives its entry up at the end
            of the first place, even in the midst of the second; another request can evict it, and
            the half-read one waits until it can be computed again (vllm#54284). Safe: kept until
            that place is read.

        preempts_in_flight: a victim is preempted while a step in flight touches its blocks, which
            frees nothing, so that one request in need preempts all that run (vllm#49674). Safe: the
            victim is left out of the steps that follow, and preempted when none touches its blocks.
        reuses_in_flight: without a connector, blocks go back to the free queue while a step in
            flight still writes them (vllm#45357 closed the hole for connectors only). Safe: they
            come back when the last step that touches them has come back.
        promotes_at_scan: a load that has ended is noticed only when the pass reaches its request,
            which a head of the queue that does not fit prevents for ever (vllm#45406, vllm#57841).
            Safe: noticed at once, and loaded requests are admitted before all others.
        reserves_for_prefills_only: a load is admitted if it fits beside what prefills in flight
            still need, though local requests may take that (vllm#48433). Safe: only if all that is
            loaded fits into the pool together, each request with all of its known tokens.
        recomputes_in_place: what a synchronous load did not bring is computed anew in blocks that
            were published meanwhile, so that others find what is not there (vLLM
            Scheduler._handle_invalid_blocks). Safe: nothing of such a request is published before
            its first step has come back, and it starts over.
        expects_dropped_samples: with a step more in flight on what such a load did not bring, that
            step's sample is accepted though it was computed from bad KV, and the one that was
            dropped stays counted as an output placeholder, so that the request is scheduled a token
            too far as long as it lives (vLLM Scheduler._handle_invalid_blocks). Safe: what steps in
            flight bring is dropped, and the request starts over.

    """

    name: str = "safe"
    publishes_at_allocation: bool = False
    accepts_what_never_fits: bool = False
    drafts_beyond_limit: bool = False
    skips_after_early_victim: bool = False
    drops_half_read_repeats: bool = False
    preempts_in_flight: bool = False
    reuses_in_flight: bool = False
    promotes_at_scan: bool = False
    reserves_for_prefills_only: bool = False
    recomputes_in_place: bool = False
    expects_dropped_samples: bool = False

    @classmethod
    def safe(cls) -> Self:
        """Return the default: every rule as it is proved."""
        return cls()

    @classmethod
    def vllm_0_25_1(cls) -> Self:
        """Return the rules of vLLM 0.25.1, decision for decision."""
        return cls(
            name="vllm-0.25.1",
            publishes_at_allocation=True,
            accepts_what_never_fits=True,
            drafts_beyond_limit=True,
            skips_after_early_victim=True,
            preempts_in_flight=True,
            reuses_in_flight=True,
            promotes_at_scan=True,
            reserves_for_prefills_only=True,
            recomputes_in_place=True,
            expects_dropped_samples=True,
            drops_half_read_repeats=True,
        )
