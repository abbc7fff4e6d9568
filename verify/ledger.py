"""What the calls of a scheduler and their results say by themselves, kept as a worker keeps it.

Nothing is decided here: requests, orders, tables and the encoder's memory are written down from the
outside, so that each call can be held against all that was said before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import define, field

from kvproof.runtime import Request, SchedulerConfig, StepOutput

Outcome = tuple[str, tuple[int, ...], str | None]


@define(eq=False)
class Entry:
    """A request and how far it is.

    `prompt` is the number of tokens at the start of its turn; `table` is what the steps said about
    its blocks.
    """

    request: Request
    limit: int
    tokens: list[int]
    prompt: int
    state: str = "WAITING"
    computed: int = 0
    table: list[int] = field(factory=list)
    drafts: list[int] = field(factory=list)
    decoding: bool = False

    @property
    def name(self) -> str:
        """The request's id."""
        return self.request.request_id

    @property
    def urgency(self) -> tuple[int, float]:
        """The least is the most urgent."""
        return self.request.priority, self.request.arrival_time

    def leave_running(self, state: str) -> None:
        """Give up everything but the tokens."""
        self.state, self.computed, self.decoding = state, 0, False
        self.table, self.drafts = [], []


class Ledger:
    """Every request that is live, in the order in which it is visited, and every block it names.

    Attributes:
        leaving: requests that were aborted while the step in flight still owes them a sample.
        finished: the ids that left since the last step.
        frame: the requests of the step in flight.
        sampling: those of them that sample.
        fenced: blocks of requests aborted while the step in flight may still write to them.
        embeddings: sizes in the encoder cache by identifier, as a worker knows them.

    """

    def __init__(self, config: SchedulerConfig) -> None:
        """Start without requests."""
        self.config = config
        self.running: list[Entry] = []
        self.waiting: list[Entry] = []
        self.parked: list[Entry] = []
        self.leaving: list[Entry] = []
        self.finished: set[str] = set()
        self.frame: list[Entry] = []
        self.sampling: list[Entry] = []
        self.fenced: list[int] = []
        self.embeddings: dict[str, int] = {}
        self.num_preemptions = 0
        self.is_capacity_bound = False

    @property
    def live(self) -> dict[str, Entry]:
        """The requests that wait, run or are parked, by id."""
        return {r.name: r for r in (*self.running, *self.waiting, *self.parked)}

    @property
    def unfinished(self) -> list[Entry]:
        """The requests that some step is going to serve."""
        return [*self.running, *self.waiting]

    def add(self, request: Request) -> None:
        """Write down a new request."""
        prompt = list(request.prompt_token_ids)
        r = Entry(request, self._limit(len(prompt), request.max_tokens), prompt, len(prompt))
        if request.needs_grammar:
            r.state = "WAITING_FOR_GRAMMAR"
            self.parked.append(r)
        else:
            self._enqueue(r)

    def grammar_ready(self, name: str) -> None:
        """Write down that a parked request waits for admission."""
        self._enqueue(self._unpark(name))

    def continue_session(self, name: str, tokens: Sequence[int], max_tokens: int) -> None:
        """Write down the next input of a session."""
        r = self._unpark(name)
        r.tokens = [*r.tokens, *tokens]
        r.prompt = len(r.tokens)
        r.limit = self._limit(len(r.tokens), max_tokens)
        self._enqueue(r)

    def parked_as(self, state: str) -> list[Entry]:
        """Return the requests that are parked for one reason."""
        return [r for r in self.parked if r.state == state]

    def defers(self, throttle: bool) -> bool:
        """Return whether a step opened now is to leave prefills for later."""
        decodes = any(r.decoding for r in self.running)
        return throttle and decodes and not self.is_capacity_bound

    def schedule(self, output: StepOutput, throttle: bool, queue: Sequence[str]) -> None:
        """Write down what a step said, and `queue`, the order in which requests wait since then."""
        defers = self.defers(throttle)
        self.finished.clear()
        self._preempt(output, queue)
        self._admit(output)
        self._compute(output)
        self._note_embeddings(output)
        if not defers and not output.preempted_req_ids:
            self.is_capacity_bound = bool(self.waiting)

    def account(self, sampled: Mapping[str, Sequence[int]]) -> list[Outcome]:
        """Write down samples; return (id, tokens, why it ended or None) of what is to be accepted.

        A request takes its samples up to a stop token or its limit.
        """
        outcomes: list[Outcome] = []
        for r in self.sampling:
            if r.state == "RUNNING":
                accepted = _until_stop(sampled[r.name][: r.limit - len(r.tokens)], r.request)
                r.tokens = [*r.tokens, *accepted]
                r.computed, r.drafts, r.decoding = len(r.tokens) - 1, [], True
                outcomes.append((r.name, tuple(accepted), self._end(r)))
        self.finished |= {r.name for r in self.leaving}
        self.leaving, self.frame, self.sampling, self.fenced = [], [], [], []
        return outcomes

    def propose(self, drafts: Mapping[str, Sequence[int]]) -> None:
        """Write down draft tokens of those that decode, up to what they may sample."""
        for r in self.running:
            if r.name in drafts and r.decoding:
                r.drafts = list(drafts[r.name][: r.limit - 1 - len(r.tokens)])

    def abort(self, names: Iterable[str]) -> list[str]:
        """Write down the end of the live ones among the named; return their ids."""
        live = self.live
        ending = [live[name] for name in dict.fromkeys(names) if name in live]
        for r in ending:
            self.fenced += r.table if r in self.frame else []
            for group in (self.running, self.waiting, self.parked):
                if r in group:
                    group.remove(r)
            r.leave_running("FINISHED_ABORTED")
            self.leaving.append(r) if r in self.sampling else self.finished.add(r.name)
        return [r.name for r in ending]

    def room(self, r: Entry) -> int:
        """Return how many more tokens a parked session could have."""
        config = self.config
        capacity = config.num_usable_blocks * config.block_size - config.num_lookahead_tokens
        return min(capacity + 1, config.max_model_len) - len(r.tokens)

    def _limit(self, known: int, max_tokens: int) -> int:
        return min(known + max_tokens, self.config.max_model_len)

    def _enqueue(self, r: Entry) -> None:
        self.waiting.insert(0 if r.state == "PREEMPTED" else len(self.waiting), r)
        if self.config.policy == "priority":
            self.waiting.sort(key=lambda r: (*r.urgency, r.name))

    def _unpark(self, name: str) -> Entry:
        found = self.live[name]
        self.parked.remove(found)
        found.state = "WAITING"
        return found

    def _preempt(self, output: StepOutput, queue: Sequence[str]) -> None:
        """Put victims back; in which order a policy chose several is told by the queue alone."""
        names = output.preempted_req_ids
        victims = [r for r in self.running if r.name in names]
        self.running = [r for r in self.running if r.name not in names]
        for r in sorted(victims, key=lambda r: queue.index(r.name), reverse=True):
            r.leave_running("PREEMPTED")
            self._enqueue(r)
        self.num_preemptions += len(victims)

    def _admit(self, output: StepOutput) -> None:
        members = set(output.req_ids)
        admitted = [r for r in self.waiting if r.name in members]
        self.waiting = [r for r in self.waiting if r.name not in members]
        for r in admitted:
            r.state = "RUNNING"
        self.running += admitted

    def _compute(self, output: StepOutput) -> None:
        live, start = self.live, dict(zip(output.req_ids, output.computed.tolist(), strict=True))
        self.frame = [live[name] for name in output.req_ids]
        for r in self.frame:
            r.table = r.table + output.new_block_ids[r.name]
            r.computed = start[r.name] + output.num_scheduled_tokens[r.name]
            if r.computed >= len(r.tokens):
                self.sampling.append(r)

    def _note_embeddings(self, output: StepOutput) -> None:
        for identifier in output.free_encoder_mm_hashes:
            self.embeddings.pop(identifier, None)
        for name, places in output.scheduled_encoder_inputs.items():
            items = self.live[name].request.mm_features
            self.embeddings |= {items[i].identifier: items[i].length for i in places}

    def _end(self, r: Entry) -> str | None:
        """Let a complete request go; return why it ended, or None if it goes on."""
        reason = "length" if len(r.tokens) == r.limit else None
        reason = "stop" if r.tokens[-1] in r.request.stop_token_ids else reason
        if reason is None:
            return None
        self.running.remove(r)
        r.leave_running("WAITING_FOR_STREAMING")
        if r.request.resumable:
            self.parked.append(r)
        else:
            self.finished.add(r.name)
        return reason


def _until_stop(tokens: Sequence[int], request: Request) -> list[int]:
    ends = (place for place, token in enumerate(tokens) if token in request.stop_token_ids)
    return list(tokens[: next(ends, len(tokens)) + 1])
