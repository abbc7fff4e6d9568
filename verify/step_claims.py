"""What must be true of a step and of its results, in terms of the public face of a scheduler.

Each claim is also a piece of Python over `scheduler`, `output` and `results`, so that a failing one
can be the last line of a program. What was said before the step is in the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from attrs import frozen

from kvproof.runtime import RequestOutput, Scheduler, StepOutput
from kvproof.verify.ledger import Entry, Ledger, Outcome
from kvproof.verify.plain_scheduler import Decision, PlainRequest
from kvproof.verify.recorded_run import RecordedRun
from kvproof.verify.victim_rule import VictimRule


@frozen
class StepClaims:
    """The claims about one step, which the ledger does not know yet.

    Attributes:
        victim: the rule by which victims are chosen; None if it is that of the policy.
        throttle: whether the step was asked to leave prefills for later.

    """

    recorded: RecordedRun
    scheduler: Scheduler
    output: StepOutput
    ledger: Ledger
    victim: VictimRule | None = None
    throttle: bool = False

    def check(self) -> None:
        """Check everything that a step says."""
        self._check_limits()
        self._check_somebody_gets_on()
        self._check_victims()
        self._check_members()
        self._check_chunks()
        self._check_tokens_to_come()
        self._check_drafts()
        self._check_deferral()
        self._check_embeddings()
        self._check_workers_view()
        finished = self.output.finished_req_ids
        self.recorded.equal("output.finished_req_ids", finished, self.ledger.finished)

    def _check_limits(self) -> None:
        config, demand, output = self.scheduler.config, self.recorded.demand, self.output
        tokens = output.num_scheduled_tokens
        total, budget = sum(tokens.values()), config.max_num_batched_tokens
        claim = f"sum(output.num_scheduled_tokens.values()) <= {budget}"
        demand(claim, total <= budget, total)
        seen = output.total_num_scheduled_tokens
        claim = "output.total_num_scheduled_tokens == sum(output.num_scheduled_tokens.values())"
        demand(claim, seen == total, seen)
        claim = f"len(output.req_ids) <= {config.max_num_seqs}"
        demand(claim, len(tokens) <= config.max_num_seqs, len(tokens))
        most = config.long_prefill_token_threshold or budget
        claim = f"all(1 <= n <= {most} for n in output.num_scheduled_tokens.values())"
        demand(claim, all(1 <= n <= most for n in tokens.values()), tokens)
        admitted = [*output.new_rows, *output.resumed_rows]
        claim = "not (output.preempted_req_ids and (output.new_rows or output.resumed_rows))"
        demand(claim, not (output.preempted_req_ids and admitted), admitted)

    def _check_somebody_gets_on(self) -> None:
        """Check that a step with work serves or preempts somebody: else each one after it is so.

        Where a step in flight computes nothing, it leaves the state as it was; else the step may
        have to wait until that one has come back.
        """
        if not self.ledger.unfinished or self.scheduler.config.profile.accepts_what_never_fits:
            return
        if self.ledger.computing:
            return
        got_on = bool(self.output.num_scheduled_tokens or self.output.preempted_req_ids)
        claim = "output.num_scheduled_tokens or output.preempted_req_ids"
        self.recorded.demand(claim, got_on, self.output.num_scheduled_tokens)

    def _check_victims(self) -> None:
        """Check that victims ran, wait now, and are the ones that the policy has to choose.

        None is in a step in flight: to preempt it would free nothing.
        """
        seen, waiting = self.output.preempted_req_ids, self.scheduler.waiting_request_ids()
        names = [r.name for r in self.ledger.running]
        self.recorded.demand(f"output.preempted_req_ids <= {set(names)}", seen <= set(names), seen)
        claim = "output.preempted_req_ids <= set(scheduler.waiting_request_ids())"
        self.recorded.demand(claim, seen <= set(waiting), waiting)
        flying = {part.request.name for part in self.ledger.computing if part.is_wanted}
        self.recorded.demand(f"not output.preempted_req_ids & {flying}", not seen & flying, seen)
        if not seen or self.victim not in (None, VictimRule(-1)):
            return
        order = self.ledger.running
        if self.victim is None and self.scheduler.config.policy == "priority":
            first_of_equals = self.scheduler.config.profile.preempts_first_of_equals
            order = sorted(order[::-1] if first_of_equals else order, key=lambda r: r.urgency)
        last = {r.name for r in order[len(order) - len(seen) :]}
        self.recorded.equal("output.preempted_req_ids", seen, last)

    def _check_members(self) -> None:
        """Check who is in the step: running requests in order, then the first that waited."""
        output, ledger = self.output, self.ledger
        names = set(output.req_ids)
        staying = [r for r in ledger.running if r.name not in output.preempted_req_ids]
        visited = [r.name for r in staying if r.name in names]
        admitted = ledger.waiting[: len(names) - len(visited)]
        expected = [*visited, *(r.name for r in admitted)]
        self.recorded.equal("output.req_ids", output.req_ids, expected)
        new = {data.req_id for data in output.scheduled_new_reqs}
        claim = "{data.req_id for data in output.scheduled_new_reqs}"
        self.recorded.equal(claim, new, {r.name for r in admitted if r.state == "WAITING"})
        resumed = {r.name for r in admitted if r.state == "PREEMPTED"}
        self.recorded.equal("output.resumed_req_ids", output.resumed_req_ids, resumed)
        running = [r.name for r in (*staying, *admitted)]
        claim = "scheduler.running_request_ids()"
        self.recorded.equal(claim, self.scheduler.running_request_ids(), running)

    def _check_chunks(self) -> None:
        """Check where each chunk begins and ends, and who samples after it."""
        output, size, sampling = self.output, self.scheduler.config.block_size, []
        for place, (r, tokens) in enumerate(self._chunks()):
            start = int(output.computed[place])
            name = f"output.computed[{place}]"
            if r.state == "RUNNING":
                self.recorded.equal(name, start, r.computed)
            else:
                caching = self.scheduler.config.enable_prefix_caching
                most = (len(r.tokens) - 1) // size * size if caching else 0
                claim = f"{name} in range(0, {most + 1}, {size})"
                self.recorded.demand(claim, start in range(0, most + 1, size), start)
            if start + tokens >= len(r.tokens):
                sampling.append(r.name)
        self.recorded.equal("output.sampled_req_ids", output.sampled_req_ids, sampling)

    def _check_tokens_to_come(self) -> None:
        """Check which inputs steps in flight still bring, and that no sample is beyond a limit."""
        output, pending = self.output, []
        for place, (r, tokens) in enumerate(self._chunks()):
            start = int(output.computed[place])
            if start >= len(r.tokens):
                pending.append(place)
            claim = f"max({len(r.tokens)}, output.computed[{place}] + 1) < {r.limit}"
            self.recorded.demand(claim, max(len(r.tokens), start + 1) < r.limit, tokens)
        seen = output.pending_places.tolist()
        self.recorded.equal("output.pending_places.tolist()", seen, pending)

    def _check_drafts(self) -> None:
        """Check that a running request tries its drafts in order, and another none of its own."""
        output, most = self.output, self.scheduler.config.num_speculative_tokens
        name = "output.scheduled_spec_decode_tokens"
        for place, (r, tokens) in enumerate(self._chunks()):
            start = int(output.computed[place])
            drafts = start + tokens - max(len(r.tokens), start + 1)
            seen = output.scheduled_spec_decode_tokens.get(r.name, [])
            claim = f"len({name}.get({r.name!r}, [])) == {max(drafts, 0)} <= {most}"
            self.recorded.demand(claim, len(seen) == max(drafts, 0) <= most, seen)
            if r.state == "RUNNING":
                expected = r.drafts[: max(drafts, 0)]
                self.recorded.equal(f"{name}.get({r.name!r}, [])", seen, expected)

    def _check_deferral(self) -> None:
        """Check that a step that is to leave prefills for later serves decodes only."""
        if not self.ledger.defers(self.throttle):
            return
        for place, (r, tokens) in enumerate(self._chunks()):
            left = len(r.tokens) - int(self.output.computed[place])
            if not r.decodes:
                claim = (
                    f"output.computed[{place}] == {len(r.tokens) - 1}  # the step defers prefills"
                )
                self.recorded.demand(claim, left == 1, tokens)

    def _check_embeddings(self) -> None:
        """Check what the encoder computes and forgets, as a worker does who keeps its results."""
        output, before, demand = self.output, self.ledger.embeddings, self.recorded.demand
        freed = output.free_encoder_mm_hashes
        demand(
            f"set(output.free_encoder_mm_hashes) <= {set(before)}", set(freed) <= set(before), freed
        )
        read = self._items_in_flight()
        demand(f"not set(output.free_encoder_mm_hashes) & {read}", not set(freed) & read, freed)
        kept = {name: size for name, size in before.items() if name not in freed}
        live, computed = self.ledger.live, dict[str, int]()
        for name, places in output.scheduled_encoder_inputs.items():
            items = live[name].request.mm_features
            there = {place for place, item in enumerate(items) if item.identifier in kept}
            claim = f"not {there} & set(output.scheduled_encoder_inputs.get({name!r}, []))"
            demand(claim, not there & set(places), places)
            computed |= {items[place].identifier: items[place].length for place in places}
        self._check_encoder_limits(sum(kept.values()), sum(computed.values()))
        self._check_items_are_there(kept.keys() | computed.keys())

    def _items_in_flight(self) -> set[str]:
        """Return the items that steps in flight read for requests that still run."""
        running = (part for part in self.ledger.computing if part.is_wanted)
        return {
            item.identifier
            for part in running
            if part.request.name not in self.output.preempted_req_ids
            for item in part.request.request.mm_features
            if item.offset < part.end and part.start < item.end
        }

    def _check_encoder_limits(self, kept: int, computed: int) -> None:
        config, live, output = self.scheduler.config, self.ledger.live, self.output
        if not output.scheduled_encoder_inputs:
            return
        sizes = {
            name: [item.length for item in live[name].request.mm_features]
            for name in output.scheduled_encoder_inputs
        }
        name = f"sum({sizes}[r][i] for r, places in output.scheduled_encoder_inputs.items()"
        name += " for i in places)"
        budget, slots = config.max_num_encoder_input_tokens, config.encoder_cache_size
        self.recorded.demand(f"{name} <= {budget}", computed <= budget, computed)
        self.recorded.demand(f"{kept} + {name} <= {slots}", kept + computed <= slots, computed)

    def _check_items_are_there(self, kept: Set[str]) -> None:
        """Check that each item that a chunk reads, or that is half read, is in the cache."""
        needed = set[str]()
        chunks = {
            r: (int(start), n)
            for (r, n), start in zip(self._chunks(), self.output.computed, strict=True)
        }
        for r in self.ledger.running:
            if r.name not in self.output.preempted_req_ids:
                chunks.setdefault(r, (r.computed, 0))
        for r, (start, tokens) in chunks.items():
            needed |= {
                item.identifier
                for item in r.request.mm_features
                if item.offset < start + tokens and start < item.end
            }
        if not needed:
            return
        names = {
            name: [item.identifier for item in self.ledger.live[name].request.mm_features]
            for name in self.output.scheduled_encoder_inputs
        }
        claim = f"{needed} <= {set(self.ledger.embeddings)} - set(output.free_encoder_mm_hashes)"
        claim += f" | {{{names}[r][i] for r, places in output.scheduled_encoder_inputs.items()"
        claim += " for i in places}"
        self.recorded.demand(claim, needed <= kept, sorted(kept))

    def _check_workers_view(self) -> None:
        """Check what a worker is told about requests that it knows already, and their tables."""
        output, chunks = self.output, self._chunks()
        cached, starts = output.scheduled_cached_reqs, output.computed.tolist()
        known = [place for place, (r, _) in enumerate(chunks) if r.state != "WAITING"]
        name = "output.scheduled_cached_reqs"
        self.recorded.equal(f"{name}.req_ids", cached.req_ids, [chunks[i][0].name for i in known])
        computed = [starts[i] for i in known]
        self.recorded.equal(f"{name}.num_computed_tokens", cached.num_computed_tokens, computed)
        outputs = [len(chunks[i][0].tokens) - chunks[i][0].prompt for i in known]
        self.recorded.equal(f"{name}.num_output_tokens", cached.num_output_tokens, outputs)
        for new in output.scheduled_new_reqs:
            r = self.ledger.live[new.req_id]
            claim = "{data.req_id: list(data.prompt_token_ids) for data in"
            claim += f" output.scheduled_new_reqs}}[{r.name!r}]"
            self.recorded.equal(claim, list(new.prompt_token_ids), r.tokens)
        for r, _ in chunks:
            claim = f"output.new_block_ids[{r.name!r}]"
            new_blocks, before = output.new_block_ids[r.name], len(r.table)
            seen = self.scheduler.block_ids(r.name)[before:]
            table = f"scheduler.block_ids({r.name!r})[{before}:]"
            self.recorded.demand(f"{table} == {claim}", seen == new_blocks, seen)

    def _chunks(self) -> list[tuple[Entry, int]]:
        """Return the members of the step, as they were before it, and their tokens."""
        live = self.ledger.live
        return [(live[name], n) for name, n in self.output.num_scheduled_tokens.items()]


def check_decision(recorded: RecordedRun, output: StepOutput, decision: Decision) -> None:
    """Check that a step is the one that the plain scheduler decides."""
    chunks = [(r.name, tokens) for r, tokens in decision.chunks]
    seen = list(output.num_scheduled_tokens.items())
    recorded.equal("list(output.num_scheduled_tokens.items())", seen, chunks)
    new = [data.req_id for data in output.scheduled_new_reqs]
    claim = "[data.req_id for data in output.scheduled_new_reqs]"
    recorded.equal(claim, new, _names(decision.new))
    resumed, preempted = set(_names(decision.resumed)), set(_names(decision.preempted))
    recorded.equal("output.resumed_req_ids", output.resumed_req_ids, resumed)
    recorded.equal("output.preempted_req_ids", output.preempted_req_ids, preempted)
    recorded.equal("output.sampled_req_ids", output.sampled_req_ids, _names(decision.sampling))


def check_results(
    recorded: RecordedRun, results: Sequence[RequestOutput], expected: Sequence[Outcome]
) -> None:
    """Check that each accepted sample is reported once, in order, with why its request ended."""
    seen = [(item.request_id, item.new_token_ids, item.finish_reason) for item in results]
    claim = "[(o.request_id, o.new_token_ids, o.finish_reason) for o in results]"
    recorded.equal(claim, seen, list(expected))


def _names(requests: Sequence[PlainRequest]) -> list[str]:
    return [r.name for r in requests]
