"""The proof of the pudding: two runs side by side, and everything that is not as it should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvproof.cli.demo_run import Run
from kvproof.cli.demo_workload import Workload


def faults(roomy: Run, tight: Run) -> list[str]:
    """Return a sentence for each thing that went wrong; none if the runs are equal and clean."""
    return [
        *_left_over(roomy),
        *_left_over(tight),
        *(
            difference(name, roomy, tight)
            for name in roomy.tokens
            if not _equal(name, roomy, tight)
        ),
    ]


def difference(name: str, roomy: Run, tight: Run) -> str:
    """Return where two unequal replies to a request part."""
    pairs = zip_longest(roomy.tokens[name], tight.tokens[name])
    place, first, second = next((i, a, b) for i, (a, b) in enumerate(pairs) if a != b)
    return (
        f"{name}: token {place} of the reply is {_said(first)} {roomy.name} and {_said(second)}"
        f" {tight.name}"
    )


def show(console: Console, workload: Workload, roomy: Run, tight: Run) -> None:
    """Print the replies if they mean anything, then both tables and the verdict."""
    if not workload.is_random:
        _show_replies(console, workload, roomy)
    console.print(_table_of_requests(workload, roomy, tight))
    console.print(_table_of_runs(workload, roomy, tight))
    found = faults(roomy, tight)
    for text in found or [_praise(roomy, tight)]:
        console.print(Text(text, "bold red" if found else "bold green"), soft_wrap=True)


def _left_over(run: Run) -> Iterator[str]:
    if len(run.finished | run.aborted) < len(run.tokens):
        yield f"{run.name}: {len(run.finished)} of {len(run.tokens)} requests finished"
    if run.statistics.num_free_blocks < run.blocks:
        yield f"{run.name}: {_returned(run)} blocks were returned"


def _equal(name: str, roomy: Run, tight: Run) -> bool:
    """Return whether both replies are the same, or begin alike if one could not be completed."""
    whole, reply = roomy.tokens[name], tight.tokens[name]
    return (whole[: len(reply)] if name in tight.cut_short else whole) == reply


def _said(token: int | None) -> str:
    return "missing" if token is None else str(token)


def _praise(roomy: Run, tight: Run) -> str:
    preemptions = tight.statistics.num_preemptions
    whole = [name for name in tight.tokens if name not in tight.cut_short]
    tokens = sum(len(tight.tokens[name]) for name in whole)
    praise = (
        f"equal: {len(whole)} requests, {tokens} tokens, token for token, with"
        f" {preemptions} preemptions; every block was returned"
    )
    doubt = "\nBut nobody was preempted; give fewer --blocks, more --requests or more --max-tokens."
    return praise if preemptions else praise + doubt


def _show_replies(console: Console, workload: Workload, run: Run) -> None:
    for prompt, tokens in zip(workload.prompts, run.tokens.values(), strict=True):
        console.print(Text(prompt, "bold"))
        console.print(Text(workload.model.tokenizer.decode(tokens).strip()), end="\n\n")


def _table_of_requests(workload: Workload, roomy: Run, tight: Run) -> Table:
    table = Table("request", title="token for token")
    for heading in ("prompt", "reply", "preempted", "equal"):
        table.add_column(heading, justify="right")
    for name, prompt in zip(roomy.tokens, workload.token_ids, strict=True):
        equal = _verdict(name, roomy, tight)
        times = str(tight.preemptions[name])
        table.add_row(name, str(len(prompt)), str(len(tight.tokens[name])), times, equal)
    return table


def _verdict(name: str, roomy: Run, tight: Run) -> Text:
    if not _equal(name, roomy, tight):
        return Text("no", "bold red")
    if name in tight.cut_short:
        return Text("aborted" if name in tight.aborted else "failed", "yellow")
    return Text("yes", "green")


def _table_of_runs(workload: Workload, roomy: Run, tight: Run) -> Table:
    table = Table("", title="two runs")
    for run in (roomy, tight):
        table.add_column(run.name, justify="right")
    for label, read in _ROWS.items():
        table.add_row(label, read(roomy), read(tight))
    for label, count in _of_loads(tight):
        table.add_row(label, "", f"{count:,}")
    if workload.shared_prefix:
        table.add_row("prompt tokens found in the cache", _hits(roomy), _hits(tight))
    if roomy.engine.pool.debug:
        for label, read in _DEBUG_ROWS.items():
            table.add_row(label, read(roomy), read(tight))
    return table


def _of_loads(run: Run) -> list[tuple[str, int]]:
    """Return what the connector of a run has done, by what it is called."""
    if run.loads is None:
        return []
    counts = run.loads
    return [
        ("loads started", counts.started),
        ("loads landed", counts.landed),
        ("loads failed", counts.failed),
        ("loads lost", counts.lost),
        ("tokens loaded, not computed", counts.tokens_loaded),
        *([("requests aborted", len(run.aborted))] if run.aborts is not None else []),
        *([("requests failed with their loads", len(run.failed))] if run.failed else []),
    ]


def _hits(run: Run) -> str:
    cache = run.engine.scheduler.prefix_statistics()
    return f"{cache.hits + cache.preempted_hits:,} of {cache.queries + cache.preempted_queries:,}"


def _returned(run: Run) -> str:
    return f"{run.statistics.num_free_blocks} of {run.blocks}"


_ROWS: dict[str, Callable[[Run], str]] = {
    "requests finished": lambda run: f"{len(run.finished)} of {len(run.tokens)}",
    "blocks returned": _returned,
    "preemptions": lambda run: f"{run.statistics.num_preemptions}",
    "steps": lambda run: f"{run.steps}",
    "tokens/s": lambda run: f"{run.tokens_per_second:,.0f}",
}
_DEBUG_ROWS: dict[str, Callable[[Run], str]] = {
    "blocks filled with NaN when freed": lambda run: f"{run.engine.pool.num_blocks_poisoned:,}",
    "reads whose owner was verified": lambda run: f"{run.engine.num_slots_verified:,}",
}
