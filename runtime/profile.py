"""The rules in which kvproof differs from vLLM 0.25.1, each with the report that shows why."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from attrs import field, frozen


class LoadAdmission(StrEnum):
    """When an asynchronous load is admitted; what is loaded cannot be preempted."""

    FITS = "fits"
    """What it brings fits into the free blocks: two loads can wait for one another (vllm#30659)."""

    WHOLE_PROMPT = "whole prompt"
    """All known tokens of the request fit into the free blocks (vllm#45388)."""

    RESERVATION = "reservation"
    """As before, and what it brings fits beside what all prefills in flight still need (vLLM
    0.25.1, vllm#44560)."""

    TOGETHER = "together"
    """What it brings fits beside what the first running request still needs, and all that is loaded
    fits into the pool together, each request with all of its known tokens."""


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
            Safe: noticed at once.
        load_admission: when a load is admitted; by the weaker rules several loads can wait for each
            other's blocks for ever (vllm#30659, vllm#45388). Safe: `LoadAdmission.TOGETHER`.
        ignores_lookahead_of_loads: what a load needs in the end is counted without the slots for
            look-ahead, which it then lacks (vllm#57104). Safe: counted.
        lets_others_pass_loaded: requests that hold loaded blocks wait like all others, behind
            whoever does not fit because of those blocks (vllm#45406, vllm#57841). Safe: they go
            before all that hold none.
        repeats_failed_loads: a request whose load brought nothing is offered to the connector
            again, and can be loaded in vain for ever (vLLM
            Scheduler._update_waiting_for_remote_kv). Safe: it is computed, and may be loaded again
            after it has been preempted.
        preempts_first_of_equals: of the least urgent running requests the one that was admitted
            first is preempted, so that equals can undo each other's work in turn (vLLM
            Scheduler.schedule, max over the running list). Safe: the one admitted last.
        scans_past_refusals: a pass goes on behind a request that does not fit, so that small
            requests can overtake a large one for ever (vllm#57413). Safe: it ends, as in vLLM.
        keeps_room_for_loads: local requests are admitted only beside what loads still need
            (vllm#48433). Safe: they may take it, as in vLLM, for they can be preempted.
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
    load_admission: LoadAdmission = field(default=LoadAdmission.TOGETHER, converter=LoadAdmission)
    ignores_lookahead_of_loads: bool = False
    lets_others_pass_loaded: bool = False
    repeats_failed_loads: bool = False
    preempts_first_of_equals: bool = False
    scans_past_refusals: bool = False
    keeps_room_for_loads: bool = False
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
            load_admission=LoadAdmission.RESERVATION,
            ignores_lookahead_of_loads=True,
            lets_others_pass_loaded=True,
            repeats_failed_loads=True,
            preempts_first_of_equals=True,
            recomputes_in_place=True,
            expects_dropped_samples=True,
            drops_half_read_repeats=True,
        )
