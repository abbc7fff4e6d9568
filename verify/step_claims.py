"""What must be true of a step, of its results and of the scheduler, in terms of its public face.

Each claim is also a piece of Python over `scheduler`, `output` and `results`, so that a failing one
can be the last line of a program.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.runtime import RequestOutput, Scheduler, SchedulerConfig, StepOutput
from kvproof.verify.plain_scheduler import Decision, PlainRequest, PlainScheduler
from kvproof.verify.recorded_run import RecordedRun


def check_step(
    recorded: RecordedRun,
    scheduler: Scheduler,
    output: StepOutput,
    decision: Decision,
    finished: set[str],
) -> None:
    """Check a step by itself, then against the decision, and learn its blocks."""
    _check_limits(recorded, scheduler.config, output)
    _check_members(recorded, output, decision)
    equal = recorded.equal
    equal("output.finished_req_ids", output.finished_req_ids, finished)
    equal("output.sampled_req_ids", output.sampled_req_ids, _names(decision.sampling))
    _check_workers_view(recorded, output, decision)
    _learn_tables(recorded, scheduler, output, decision)


def _check_limits(recorded: RecordedRun, config: SchedulerConfig, output: StepOutput) -> None:
    tokens = output.num_scheduled_tokens
    total, budget = sum(tokens.values()), config.max_num_batched_tokens
    claim = f"sum(output.num_scheduled_tokens.values()) <= {budget}"
    recorded.demand(claim, total <= budget, total)
    seen = output.total_num_scheduled_tokens
    claim = "output.total_num_scheduled_tokens == sum(output.num_scheduled_tokens.values())"
    recorded.demand(claim, seen == total, seen)
    claim = f"len(output.req_ids) <= {config.max_num_seqs}"
    recorded.demand(claim, len(tokens) <= config.max_num_seqs, len(tokens))
    most = config.long_prefill_token_threshold or budget
    claim = f"all(1 <= n <= {most} for n in output.num_scheduled_tokens.values())"
    recorded.demand(claim, all(1 <= n <= most for n in tokens.values()), tokens)
    admitted = [*output.new_rows, *output.resumed_rows]
    claim = "not (output.preempted_req_ids and (output.new_rows or output.resumed_rows))"
    recorded.demand(claim, not (output.preempted_req_ids and admitted), admitted)


def _check_members(recorded: RecordedRun, output: StepOutput, decision: Decision) -> None:
    chunks = [(r.name, tokens) for r, tokens in decision.chunks]
    seen = list(output.num_scheduled_tokens.items())
    recorded.equal("list(output.num_scheduled_tokens.items())", seen, chunks)
    new = [data.req_id for data in output.scheduled_new_reqs]
    claim = "[data.req_id for data in output.scheduled_new_reqs]"
    recorded.equal(claim, new, _names(decision.new))
    resumed, preempted = set(_names(decision.resumed)), set(_names(decision.preempted))
    recorded.equal("output.resumed_req_ids", output.resumed_req_ids, resumed)
    recorded.equal("output.preempted_req_ids", output.preempted_req_ids, preempted)


def _check_workers_view(recorded: RecordedRun, output: StepOutput, decision: Decision) -> None:
    """Check what a worker is told about requests that it knows already."""
    cached = output.scheduled_cached_reqs
    known = [(r, tokens) for r, tokens in decision.chunks if r not in decision.new]
    name = "output.scheduled_cached_reqs"
    recorded.equal(f"{name}.req_ids", cached.req_ids, [r.name for r, _ in known])
    computed = [r.computed - tokens for r, tokens in known]
    recorded.equal(f"{name}.num_computed_tokens", cached.num_computed_tokens, computed)
    outputs = [len(r.tokens) - len(r.request.prompt_token_ids) for r, _ in known]
    recorded.equal(f"{name}.num_output_tokens", cached.num_output_tokens, outputs)


def _learn_tables(
    recorded: RecordedRun, scheduler: Scheduler, output: StepOutput, decision: Decision
) -> None:
    """Keep tables as a worker does: from the new blocks of each step alone."""
    for r, _ in decision.chunks:
        before, new = len(r.table), output.new_block_ids[r.name]
        claim = f"output.new_block_ids[{r.name!r}]"
        recorded.equal(f"len({claim})", len(new), r.held - before)
        seen = scheduler.block_ids(r.name)[before:]
        recorded.demand(f"scheduler.block_ids({r.name!r})[{before}:] == {claim}", seen == new, seen)
        r.table = r.table + new


def check_results(
    recorded: RecordedRun,
    results: Sequence[RequestOutput],
    expected: Sequence[tuple[str, tuple[int], str | None]],
) -> None:
    """Check that each accepted sample is reported once, in order, with why its request ended."""
    seen = [(item.request_id, item.new_token_ids, item.finish_reason) for item in results]
    claim = "[(o.request_id, o.new_token_ids, o.finish_reason) for o in results]"
    recorded.equal(claim, seen, list(expected))


def check_state(recorded: RecordedRun, scheduler: Scheduler, plain: PlainScheduler) -> None:
    """Check every request and every block between two calls."""
    for r in (*plain.live.values(), *plain.leaving):
        _check_request(recorded, scheduler, r)
    for name in plain.finished - plain.live.keys():
        recorded.equal(f"scheduler.status({name!r})", scheduler.status(name), None)
    _check_counts(recorded, scheduler, plain)
    _check_blocks(recorded, scheduler, plain)


def _check_request(recorded: RecordedRun, scheduler: Scheduler, r: PlainRequest) -> None:
    status = scheduler.status(r.name)
    recorded.equal(f"scheduler.status({r.name!r}).name", status and status.name, r.state)
    if r.state == "FINISHED_ABORTED":
        return
    recorded.equal(f"scheduler.token_ids({r.name!r})", scheduler.token_ids(r.name), r.tokens)
    blocks, size = scheduler.block_ids(r.name), scheduler.config.block_size
    recorded.equal(f"scheduler.block_ids({r.name!r})", blocks, r.table)
    claim = f"len(scheduler.block_ids({r.name!r})) * {size} >= {r.computed}"
    recorded.demand(claim, len(blocks) * size >= r.computed, blocks)


def _check_counts(recorded: RecordedRun, scheduler: Scheduler, plain: PlainScheduler) -> None:
    statistics = scheduler.statistics()
    expected = {
        "num_requests_running": len(plain.running),
        "num_requests_waiting": len(plain.waiting),
        "num_preemptions": plain.num_preemptions,
        "num_free_blocks": plain.num_free,
        "num_fenced_blocks": plain.num_fenced,
    }
    for name, number in expected.items():
        recorded.equal(f"scheduler.statistics().{name}", getattr(statistics, name), number)
    unfinished = scheduler.has_unfinished_requests()
    recorded.equal("scheduler.has_unfinished_requests()", unfinished, bool(plain.live))


def _check_blocks(recorded: RecordedRun, scheduler: Scheduler, plain: PlainScheduler) -> None:
    """Check that free and held blocks are distinct and that only fenced ones are missing."""
    named = [scheduler.free_block_ids(), *(scheduler.block_ids(r.name) for r in plain.running)]
    distinct = {block for blocks in named for block in blocks}
    parts = ["*scheduler.free_block_ids()"]
    parts += [f"*scheduler.block_ids({r.name!r})" for r in plain.running]
    number = scheduler.config.num_usable_blocks - plain.num_fenced
    recorded.equal(f"len([{', '.join(parts)}])", sum(map(len, named)), number)
    recorded.equal(f"len({{{', '.join(parts)}}})", len(distinct), number)


def _names(requests: Sequence[PlainRequest]) -> list[str]:
    return [r.name for r in requests]
