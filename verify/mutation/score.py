"""The score: how many faults were tried, what became of them, and which were not noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvproof.verify.mutation.fates import Fate, Outcome

EXIT_WHOLE, EXIT_SURVIVORS, EXIT_UNKNOWN = 0, 1, 3
BATCHES = "batches."
COLOURS = {
    Fate.KILLED: "green",
    Fate.EQUIVALENT: "green",
    Fate.JUSTIFIED: "cyan",
    Fate.SURVIVED: "red",
    Fate.UNKNOWN: "yellow",
}


@frozen
class Score:
    """What became of every fault.

    Args:
        outcomes: one for each fault that was tried.
        wrong: what is the matter with justifications, a line each.
        forgotten: for each survivor of the declaration, the sentence that it lacks.
        seconds: how long it took, by the clock.

    """

    outcomes: Sequence[Outcome]
    wrong: Sequence[str] = ()
    forgotten: Mapping[str, str] = field(factory=dict)
    seconds: float = 0.0

    def of(self, fate: Fate, side: str = "") -> list[Outcome]:
        """Return the faults with this fate, of one side or of both."""
        return [o for o in self.outcomes if o.fate is fate and side in {"", o.side}]

    def share(self, side: str = "") -> float:
        """Return the part of the faults that mean a difference which some obligation notices."""
        killed, same = (len(self.of(fate, side)) for fate in (Fate.KILLED, Fate.EQUIVALENT))
        tried = sum(side in {"", outcome.side} for outcome in self.outcomes)
        return killed / (tried - same) if tried > same else 1.0


def exit_code(score: Score) -> int:
    """Return 1 if a fault survives, or a reason is not needed; 3 if one is unknown; else 0."""
    if score.wrong or score.of(Fate.SURVIVED):
        return EXIT_SURVIVORS
    return EXIT_UNKNOWN if score.of(Fate.UNKNOWN) or not score.outcomes else EXIT_WHOLE


def show(console: Console, score: Score) -> None:
    """Print the score, who noticed, each reason, each survivor, and what is wrong with reasons."""
    console.print(_fates(score))
    for line in (_noticed(score), _the_same(score)):
        console.print(line, style="dim", highlight=False, soft_wrap=True)
    _show_reasons(console, score)
    for fate in (Fate.SURVIVED, Fate.UNKNOWN):
        for outcome in score.of(fate):
            _show_fault(console, score, outcome)
    for line in score.wrong:
        console.print(Text(f"\nnot needed: {line}", "bold red"))
    console.print(_total(score))


def to_json(score: Score) -> dict[str, Any]:
    """Return the score as JSON values; `faults` is the list of all faults that were tried."""
    sides = sorted({outcome.side for outcome in score.outcomes})
    return {
        "summary": {
            side: {
                **{str(fate): len(score.of(fate, side)) for fate in Fate},
                "score": round(score.share(side), 6),
            }
            for side in sides
        },
        "seconds": round(score.seconds, 3),
        "wrong": list(score.wrong),
        "faults": [_json(score, outcome) for outcome in score.outcomes],
    }


def _fates(score: Score) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("", "tried", *Fate, "score"):
        table.add_column(str(name), justify="right" if name else "left")
    for side in dict.fromkeys(outcome.side for outcome in score.outcomes):
        counts = [len(score.of(fate, side)) for fate in Fate]
        cells = [
            Text(str(n), COLOURS[fate] if n else "dim")
            for fate, n in zip(Fate, counts, strict=True)
        ]
        table.add_row(side, str(sum(counts)), *cells, f"{score.share(side):.1%}")
    return table


def _noticed(score: Score) -> str:
    """Return who noticed the faults, by method."""
    counts = Counter(outcome.method for outcome in score.of(Fate.KILLED))
    return "noticed by " + ", ".join(f"{method} {n}" for method, n in counts.most_common())


def _the_same(score: Score) -> str:
    """Return how it was shown that faults are none, and how far."""
    same = score.of(Fate.EQUIVALENT)
    batches = sum(outcome.fault.startswith(BATCHES) for outcome in same)
    code = sum(outcome.side == "code" for outcome in same) - batches
    return (
        f"the same by z3: {len(same) - code - batches} rows wherever the invariants hold,"
        f" {code} functions in every state, {batches} batch forms for up to two positions"
    )


def _show_reasons(console: Console, score: Score) -> None:
    reasons = Counter(outcome.by for outcome in score.of(Fate.JUSTIFIED))
    for reason, number in reasons.items():
        console.print(Text(f"justified ({number}): {reason}", "cyan"), soft_wrap=True)


def _show_fault(console: Console, score: Score, outcome: Outcome) -> None:
    heading = f"\n{outcome.fate}: {outcome.fault}"
    console.print(Text(heading, f"bold {COLOURS[outcome.fate]}"), soft_wrap=True)
    if outcome.fault in score.forgotten:
        line = f"  nothing says: {score.forgotten[outcome.fault]}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if outcome.by:
        console.print(f"  {outcome.by}", markup=False, highlight=False, soft_wrap=True)


def _total(score: Score) -> Text:
    bad = len(score.of(Fate.SURVIVED)), len(score.of(Fate.UNKNOWN))
    line = Text(f"{len(score.outcomes)} faults, {bad[0]} survive, {bad[1]} unknown")
    return line.append(f" in {score.seconds:.1f} s")


def _json(score: Score, outcome: Outcome) -> dict[str, Any]:
    sentence = score.forgotten.get(outcome.fault)
    return {
        "side": outcome.side,
        "row": outcome.row,
        "fault": outcome.fault,
        "fate": str(outcome.fate),
        "by": outcome.by,
        "method": outcome.method,
        "seconds": round(outcome.seconds, 6),
        **({"forgotten": sentence} if sentence else {}),
    }
