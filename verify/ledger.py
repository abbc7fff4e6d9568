"""What the calls of a scheduler and their results say by themselves, kept as a worker keeps it.

Nothing is decided here: requests, orders, tables and the encoder's memory are written down from the
outside, so that each call can be held against all that was said before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import define, field, frozen

from kvproof.runtime import Request, SchedulerConfig, StepOutput

Outcome = tuple[str, tuple[int, ...], str | None]


@define(eq=False)
class Entry:
    """A request and how far it is.

    `prompt` is the number of tokens at the start of its turn; `table` is what the steps said about
    its blocks, and `untold` are those that it took in a step which it then had to leave, so that a
    worker learns of them with its next tokens. `attempt` counts how often it has left the running
    ones, `last_step` is the last step that ran it.
    """

    request: Request
    limit: int
    tokens: list[int]
    prompt: int
    state: str = "WAITING"
    computed: int = 0
    table: list[int] = field(factory=list)
    untold: list[int] = field(factory=list)
    drafts: list[int] = field(factory=list)
    decoding: bool = False
    attempt: int = 0
    last_step: int = 0

    @property
    def name(self) -> str:
        """The request's id."""
        return self.request.request_id

    @property
    def urgency(self) -> tuple[int, float]:
        """The least is the most urgent."""
        return self.request.priority, self.request.arrival_time

    @property
    def blocks(self) -> list[int]:
        """All of its blocks."""
        return self.table + self.untold

    @property
    def decodes(self) -> bool:
        """Whether it has its first sample, or a step in flight brings it."""
        return self.decoding or self.computed >= len(self.tokens)

    @property
    def expected(self) -> int:
        """Tokens known once every step in flight has come back."""
        return max(len(self.tokens), self.computed + 1)

    def leave_running(self, state: str) -> None:
        """Give up everything but the tokens."""
        self.state, self.computed, self.decoding = state, 0, False
        self.attempt += 1
        self.table, self.untold, self.drafts = [], [], []


@frozen
class Part:
    """What one attempt of a request computes in a step, and the draft tokens that it tries."""

    request: Entry
    attempt: int
    start: int
    end: int
    samples: bool
    drafts: tuple[int, ...] = ()

    @property
    def is_wanted(self) -> bool:
        """Whether the attempt still runs."""
        return self.request.state == "RUNNING" and self.request.attempt == self.attempt


@frozen
class Frame:
    """A step that has been scheduled and not been accounted for."""

    step: int
    parts: tuple[Part, ...]

    @property
    def sampling(self) -> list[Part]:
        """The parts that sample."""
        return [part for part in self.parts if part.samples]


@frozen
class Fence:
    """Blocks that steps up to one may still write, and that come back when it has come back."""

    until: int
    blocks: tuple[int, ...]


class Ledger:
    """Every request that is live, in the order in which it is visited, and every block it names.

    Attributes:
        leaving: requests that have ended while a step in flight runs them.
        finished: the ids whose requests have ended since the last step.
        frames: the steps in flight, the oldest first.
        fences: blocks of requests that have ended while steps in flight may still write to them.
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
        self.frames: list[Frame] = []
        self.fences: list[Fence] = []
        self.processed = 0
        self.embeddings: dict[str, int] = {}
        self.num_preemptions = 0
        self.is_capacity_bound = False

    @property
    def live(self) -> dict[str, Entry]:
        """The requests that wait, run or are parked, by id."""
        return {r.name: r for r in (*self.running, *self.waiting, *self.parked)}

    @property
    def fenced(self) -> list[int]:
        """The blocks that wait for steps in flight."""
        return [block for fence in self.fences for block in fence.blocks]

    @property
    def computing(self) -> list[Part]:
        """What the steps in flight compute."""
        return [part for frame in self.frames for part in frame.parts]

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
        decodes = any(r.decodes for r in self.running)
        return throttle and decodes and not self.is_capacity_bound

    def schedule(
        self,
        output: StepOutput,
        throttle: bool,
        queue: Sequence[str],
        tables: Mapping[str, Sequence[int]],
    ) -> None:
        """Write down what a step said.

        `queue` is the order in which requests wait since then, `tables` what running ones hold.
        """
        defers = self.defers(throttle)
        self.finished.clear()
        self._preempt(output, queue)
        self._admit(output)
        self._note_untold(output, tables)
        self._compute(output)
        self._note_embeddings(output)
        if not defers and not output.preempted_req_ids:
            self.is_capacity_bound = bool(self.waiting)

    def account(self, sampled: Mapping[str, Sequence[int]]) -> list[Outcome]:
        """Write down the samples of the oldest step in flight.

        Returns (id, tokens, why it ended or None) of what is to be accepted: a request takes its
        samples up to a stop token or its limit, and none that an earlier attempt asked for.
        """
        outcomes: list[Outcome] = []
        frame = self.frames.pop(0)
        self.processed = frame.step
        for part in frame.sampling:
            r = part.request
            if part.is_wanted:
                accepted = _until_stop(sampled[r.name][: r.limit - len(r.tokens)], r.request)
                r.tokens = [*r.tokens, *accepted]
                if self.config.num_speculative_tokens:
                    r.computed = len(r.tokens) - 1
                r.decoding = True
                outcomes.append((r.name, tuple(accepted), self._end(r)))
        self.fences = [fence for fence in self.fences if fence.until > frame.step]
        self.leaving = [r for r in self.leaving if r.last_step > frame.step]
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
            for group in (self.running, self.waiting, self.parked):
                if r in group:
                    group.remove(r)
            self._release(r)
            self._leave(r, "FINISHED_ABORTED")
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

    def _note_untold(self, output: StepOutput, tables: Mapping[str, Sequence[int]]) -> None:
        """Write down the blocks of requests that a step left out, to wait for those in flight."""
        for r in self.running if self.computing else ():
            if r.name not in output.num_scheduled_tokens:
                r.untold = list(tables[r.name][len(r.table) :])

    def _compute(self, output: StepOutput) -> None:
        live, parts = self.live, list[Part]()
        for name, start in zip(output.req_ids, output.computed.tolist(), strict=True):
            r, end = live[name], start + output.num_scheduled_tokens[name]
            r.table, r.untold = r.table + output.new_block_ids[name], []
            samples = end >= len(r.tokens)
            parts.append(Part(r, r.attempt, start, end, samples, tuple(r.drafts)))
            r.computed, r.last_step, r.drafts = end, output.step, []
        self.frames.append(Frame(output.step, tuple(parts)))

    def _release(self, r: Entry) -> None:
        """Write down that the blocks of a request come back, perhaps later."""
        if r.blocks and r.last_step > self.processed:
            last = max(frame.step for frame in self.frames if frame.parts)
            self.fences.append(Fence(last, tuple(r.blocks)))

    def _leave(self, r: Entry, state: str) -> None:
        """Write down that a request has ended; its id is free when no step in flight runs it."""
        r.leave_running(state)
        self.finished.add(r.name)
        if r.last_step > self.processed:
            self.leaving.append(r)

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
        self._release(r)
        if r.request.resumable:
            r.leave_running("WAITING_FOR_STREAMING")
            self.parked.append(r)
        else:
            self._leave(r, "FINISHED_STOPPED" if reason == "stop" else "FINISHED_LENGTH")
        return reason


def _until_stop(tokens: Sequence[int], request: Request) -> list[int]:
    ends = (place for place, token in enumerate(tokens) if token in request.stop_token_ids)
    return list(tokens[: next(ends, len(tokens)) + 1])
