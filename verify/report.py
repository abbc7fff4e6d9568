"""What became of all obligations: the exit code, the matrix, the refutations, and the JSON form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import frozen
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kvproof.spec.declaration import Declaration
from kvproof.spec.digest import digest
from kvproof.spec.properties import PROPERTIES
from kvproof.verify.counterexample import render, with_program
from kvproof.verify.verdict import Method, Result, Verdict

EXIT_PROVED, EXIT_REFUTED, EXIT_UNKNOWN = 0, 1, 3
NOTHING = "-"
COLOURS = {Verdict.PROVED: "green", Verdict.REFUTED: "red", Verdict.UNKNOWN: "yellow"}
SIGNS = {Verdict.PROVED: "", Verdict.REFUTED: " ✗", Verdict.UNKNOWN: " ?"}
LEGEND = (
    "A number counts proved obligations; ✗ refuted, ? unknown, - not a method for this property."
)

# A search for a program takes seconds, and the first few tell what is wrong.
PROGRAMS_MAX = 2
REFUTATIONS_MAX = 12


@frozen
class Report:
    """The results of one run; `complete` says that nothing was left out of it."""

    declaration: Declaration
    results: Sequence[Result]
    seconds: float = 0.0
    complete: bool = True

    def of(self, verdict: Verdict) -> list[Result]:
        """Return the results with this verdict."""
        return [result for result in self.results if result.verdict is verdict]


def exit_code(results: Sequence[Result]) -> int:
    """Return 0 if all are proved, 1 if any is refuted, else 3; to have shown nothing is unknown."""
    verdicts = {result.verdict for result in results}
    if Verdict.REFUTED in verdicts:
        return EXIT_REFUTED
    return EXIT_PROVED if verdicts == {Verdict.PROVED} else EXIT_UNKNOWN


def show(console: Console, report: Report) -> None:
    """Print the matrix, what it leaves open and why, each refutation, and the totals."""
    console.print(matrix(report))
    console.print(LEGEND, style="dim", highlight=False)
    for line in unstated(report):
        console.print(line, style="dim", highlight=False)
    _show_refuted(console, report)
    _show_unknown(console, report)
    console.print(totals(report))


def matrix(report: Report) -> Table:
    """Return the table of properties against methods."""
    methods = [m for m in Method if any(result.method is m for result in report.results)]
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("")
    for method in methods:
        table.add_column(HEADINGS.get(method, f"\n{method}"), justify="right")
    for name in _row_names(report.results):
        cells = (_cell(report.results, name, method) for method in methods)
        table.add_row(name or "all", *cells)
    return table


def unstated(report: Report) -> list[str]:
    """Return a line for each property without an obligation, which says where it is shown."""
    stated = {result.property for result in report.results}
    missing = [item for item in PROPERTIES if item.name not in stated]
    if not report.complete:
        return []
    return [f"{item.name:<3} {item.elsewhere or 'no row states it'}" for item in missing]


def totals(report: Report) -> Text:
    """Return one line: how many obligations, how they ended, and how long it took."""
    counts = [(len(report.of(verdict)), verdict) for verdict in Verdict]
    parts = [(f"{n} {verdict}", COLOURS[verdict] if n else "dim") for n, verdict in counts]
    line = Text(f"{len(report.results)} obligations: ")
    line.append_text(Text(", ").join(Text(words, style) for words, style in parts))
    return line.append(f" in {report.seconds:.1f} s")


def to_json(report: Report) -> dict[str, Any]:
    """Return the report as JSON values; `obligations` is the list of all results."""
    counts = {str(verdict): len(report.of(verdict)) for verdict in Verdict}
    return {
        "declaration": digest(report.declaration),
        "summary": {**counts, "seconds": round(report.seconds, 3)},
        "obligations": [_json(result) for result in report.results],
    }


# Words long enough to widen the table beyond a terminal are broken by hand.
HEADINGS = {
    Method.INITIAL: "ini-\ntial",
    Method.INDUCTION: "induc-\ntion",
    Method.CONSEQUENCE: "conse-\nquence",
    Method.DIFFERENCE: "diffe-\nrence",
    Method.LOAD_BEARING: "load-\nbearing",
    Method.SATISFIABLE: "satis-\nfiable",
    Method.WITNESS: "wit-\nness",
    Method.MEASURE: "mea-\nsure",
    Method.PROGRESS: "pro-\ngress",
    Method.INVERSE: "in-\nverse",
    Method.TRANSLATION: "trans-\nlation",
}


def _row_names(results: Iterable[Result]) -> list[str]:
    """Return the properties that have results, in the catalogue's order, others last."""
    seen = dict.fromkeys(result.property for result in results)
    known = [item.name for item in PROPERTIES]
    return [*(n for n in known if n in seen), *(n for n in seen if n not in known)]


def _cell(results: Iterable[Result], name: str, method: Method) -> Text:
    here = (r for r in results if r.property == name and r.method is method)
    counts = Counter(result.verdict for result in here)
    parts = [Text(f"{counts[v]}{SIGNS[v]}", COLOURS[v]) for v in Verdict if counts[v]]
    return Text("\n").join(parts) if parts else Text(NOTHING, "dim")


def _show_refuted(console: Console, report: Report) -> None:
    refuted = sorted(
        report.of(Verdict.REFUTED), key=lambda result: list(Method).index(result.method)
    )
    for number, result in enumerate(refuted[:REFUTATIONS_MAX]):
        searched = number < PROGRAMS_MAX
        shown = with_program(report.declaration, result) if searched else result
        _heading(console, result)
        _print_whole(console, render(shown, report.declaration))
    for result in refuted[REFUTATIONS_MAX:]:
        _heading(console, result)


def _show_unknown(console: Console, report: Report) -> None:
    for result in report.of(Verdict.UNKNOWN):
        _heading(console, result)
        reason = result.counterexample.explanation if result.counterexample else "no answer in time"
        _print_whole(console, reason)


def _print_whole(console: Console, shown: RenderableType) -> None:
    """Print without breaking lines, so that a program can be copied from the terminal."""
    console.print(shown, markup=False, highlight=False, soft_wrap=True)


def _heading(console: Console, result: Result) -> None:
    words = " ".join(word for word in (result.property, result.name) if word)
    console.print(Text(f"\n{result.verdict}: {words}", f"bold {COLOURS[result.verdict]}"))


def _json(result: Result) -> dict[str, Any]:
    return {
        "name": result.name,
        "property": result.property,
        "row": result.row,
        "method": str(result.method),
        "verdict": str(result.verdict),
        "seconds": round(result.seconds, 6),
    }
