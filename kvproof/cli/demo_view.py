"""A run as it goes on: the pool as bars where someone watches, a line an event where not."""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kvproof.cli.demo_run import Run
from kvproof.core import Status

BAR_WIDTH = 40
COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta")


def watch(console: Console, run: Run) -> None:
    """Carry a run to its end, and show it meanwhile."""
    if console.is_terminal:
        _watch_live(console, run)
    else:
        _watch_in_lines(console, run)


def view(run: Run) -> Group:
    """Return the pool as it is now: a line of counts, a bar for all, a bar for each request."""
    return Group(_counts(run), _pool_bar(run), _request_bars(run))


def line(run: Run) -> str:
    """Return what the last step changed, as one line."""
    named: dict[str, list[str]] = {}
    for event in run.events:
        named.setdefault(event.what, []).append(event.request_id)
    changes = "; ".join(f"{what} {', '.join(names)}" for what, names in named.items())
    return f"step {run.steps:>4}  {_numbers(run)}  {changes}"


def _watch_live(console: Console, run: Run) -> None:
    with Live(view(run), console=console, refresh_per_second=15, transient=True) as live:
        for now in run.steps_until_done():
            live.update(view(now))


def _watch_in_lines(console: Console, run: Run) -> None:
    console.print(f"{run.name}, {run.blocks} blocks", highlight=False)
    for now in run.steps_until_done():
        if now.events:
            console.print(line(now), markup=False, highlight=False, soft_wrap=True)


def _counts(run: Run) -> Text:
    speed = f"{run.statistics.num_preemptions} preemptions  {run.tokens_per_second:,.0f} tokens/s"
    return Text.assemble((run.name, "bold"), f"  step {run.steps}  {_numbers(run)}  {speed}")


def _numbers(run: Run) -> str:
    numbers = run.statistics
    return (
        f"{numbers.num_requests_running:>2} running {numbers.num_requests_waiting:>2} waiting"
        f" {numbers.num_free_blocks:>{len(str(run.blocks))}} of {run.blocks} blocks free"
    )


def _pool_bar(run: Run) -> Text:
    """Show who holds what; the ends of the pieces are rounded, so that they add up."""
    bar, taken, shown = Text(), 0, 0
    for number, blocks in enumerate(_held(run)):
        taken += blocks
        end = round(taken * BAR_WIDTH / run.blocks)
        bar.append("█" * (end - shown), COLOURS[number % len(COLOURS)])
        shown = end
    return bar.append("·" * (BAR_WIDTH - shown), "dim")


def _request_bars(run: Run) -> Table:
    table = Table.grid(padding=(0, 2))
    for width in (0, len("preempted"), len("9999 tokens"), len("999 blocks"), BAR_WIDTH):
        table.add_column(min_width=width)
    for number, (name, blocks) in enumerate(zip(run.tokens, _held(run), strict=True)):
        bar = "█" * -(-blocks * BAR_WIDTH // run.blocks)
        table.add_row(
            Text(name),
            _state(run, name),
            Text(f"{len(run.tokens[name])} tokens", justify="right"),
            Text(f"{blocks} blocks", justify="right"),
            Text(bar, COLOURS[number % len(COLOURS)]),
        )
    return table


def _held(run: Run) -> list[int]:
    held = run.statistics.blocks_by_request
    return [held.get(name, 0) for name in run.tokens]


def _state(run: Run, name: str) -> Text:
    match run.status[name]:
        case Status.RUNNING:
            return Text("running", "green")
        case Status.PREEMPTED:
            return Text("preempted", "yellow")
        case Status.WAITING_FOR_REMOTE_KVS:
            return Text("loading", "cyan")
        case Status.WAITING:
            return Text("waiting", "dim")
    return Text("finished", "dim")
