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
    if len(run.finished) < len(run.tokens):
        yield f"{run.name}: {len(run.finished)} of {len(run.tokens)} requests finished"
    if run.statistics.num_free_blocks < run.blocks:
        yield f"{run.name}: {_returned(run)} blocks were returned"


def _equal(name: str, roomy: Run, tight: Run) -> bool:
    return roomy.tokens[name] == tight.tokens[name]


def _said(token: int | None) -> str:
    return "missing" if token is None else str(token)


def _praise(roomy: Run, tight: Run) -> str:
    preemptions = tight.statistics.num_preemptions
    praise = (
        f"equal: {len(roomy.tokens)} requests, {roomy.num_tokens} tokens, token for token, with"
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
        equal = Text("yes", "green") if _equal(name, roomy, tight) else Text("no", "bold red")
        times = str(tight.preemptions[name])
        table.add_row(name, str(len(prompt)), str(len(roomy.tokens[name])), times, equal)
    return table


def _table_of_runs(workload: Workload, roomy: Run, tight: Run) -> Table:
    table = Table("", title="two runs")
    for run in (roomy, tight):
        table.add_column(run.name, justify="right")
    for label, read in _ROWS.items():
        table.add_row(label, read(roomy), read(tight))
    if workload.shared_prefix:
        table.add_row("prompt tokens found in the cache", _hits(roomy), _hits(tight))
    if roomy.engine.pool.debug:
        for label, read in _DEBUG_ROWS.items():
            table.add_row(label, read(roomy), read(tight))
    return table


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
