"""The translation check proves the core on disk, and refutes it after any change of meaning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvproof.spec.generator.files import generated_files
from kvproof.spec.scheduler import SCHEDULER
from kvproof.verify.batch_trials import has_batch
from kvproof.verify.core_text import core_folder, names_in
from kvproof.verify.freshness import DIFF_LINES_MAX, check_freshness
from kvproof.verify.mutation.code_mutants import Module, code_mutants, translation_of
from kvproof.verify.translation import check_translation, row_translates
from kvproof.verify.verdict import Method, Result, Verdict

ROWS = SCHEDULER.complete_transitions
METHODS = (Method.TRANSLATION,)
BATCHES = [name for name, row in ROWS.items() if has_batch(row)]

# --- Small changes of meaning ---------------------------------------------------------------------

MODULES = {name: Module.on_disk(name) for name in ("rows", "batches")}
NAMES = {name: module.names() for name, module in MODULES.items()}
FUNCTIONS = {
    (module, row): [mutant for mutant in found if mutant.row == row]
    for module, found in (
        (name, list(code_mutants(SCHEDULER, module))) for name, module in MODULES.items()
    )
    for row in (ROWS if module == "rows" else BATCHES)
}
# One in so many is tried here, at another place in each function; `kvproof mutate` tries them all.
EVERY = 25


def survivors(module: str, row: str) -> list[str]:
    """Return those of some changes to the function of a row that the check does not refute."""
    shift = list(FUNCTIONS).index((module, row)) % EVERY
    tried = FUNCTIONS[module, row][shift::EVERY] or FUNCTIONS[module, row][:1]
    results = {m.fault: translation_of(SCHEDULER, m, NAMES[module]) for m in tried}
    return [name for name, result in results.items() if result.verdict is not Verdict.REFUTED]


# --- The tests ------------------------------------------------------------------------------------


def test_core_on_disk_is_proved() -> None:
    """Every row's function, and every batch form, does what the row says."""
    results = check_translation(SCHEDULER)

    assert {r.verdict for r in results} == {Verdict.PROVED}
    assert {r.method for r in results} == {Method.TRANSLATION}
    names = [f"{name} is translated" for name in ROWS]
    batches = [f"batch {name} matches (to 2 instances)" for name in BATCHES]
    assert [r.name for r in results] == [*names, *batches]


@pytest.mark.parametrize("row", ROWS)
def test_small_change_of_a_row_is_refuted(row: str) -> None:
    """Whatever is changed in the function of a row, the check refutes it."""
    assert survivors("rows", row) == []


@pytest.mark.parametrize("row", BATCHES)
def test_small_change_of_a_batch_form_is_refuted(row: str) -> None:
    """Whatever is changed in the batch form of a row, the check refutes it."""
    assert survivors("batches", row) == []


def rewritten(old: str, new: str) -> Result:
    """Return the result for `grow` when a piece of its function is written in another way."""
    text = (core_folder() / "rows.py").read_text(encoding="utf-8")
    start = text.index("def grow")
    assert old in text[start:]
    names = names_in(text[:start] + text[start:].replace(old, new, 1))
    return row_translates(SCHEDULER, ROWS["grow"], names)


def test_other_text_with_the_same_meaning_is_proved() -> None:
    """The check is about meaning: another way to write a guard or an effect is no fault."""
    assert rewritten("pool.free -= 1", "pool.free = pool.free - 1").verdict is Verdict.PROVED
    guard = "request.status[r] == RUNNING\n        and block.queued[b]"
    turned = "block.queued[b]\n        and request.status[r] == RUNNING"
    assert rewritten(guard, turned).verdict is Verdict.PROVED


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("return False", "return None", "neither yes nor no"),
        ("return True", "return 1", "neither yes nor no"),
        ("pool.free -= 1", "pool.freed = 1", "the state has no freed"),
        ("pool.free -= 1", "state.pool = pool.free", "pool was replaced by another object"),
        ("request.held[r] += 1", "request.held[r + 1] += 1", "unsupported operand"),
        ("request.held[r] += 1", "request.held[b] += 1", "b is a block, not a request"),
        ("request.held[r] += 1", "request.held += 1", "unsupported operand"),
        ("block.queued[b] = False", "block.queued[b] = 0", "queued[b] was set to 0"),
        ("r, request.held[r], b", "r, request.held[r] - 1, b", "another length than it has"),
        ("request.held[r] += 1", "request.held[r] += 2", "leaves another held[r]"),
        (
            "request.held[r] += 1",
            "state.request.held[:] = request.held[r] + 1",
            "leaves another held[other]",
        ),
        ("pool.free -= 1", "raise KeyError(r)", "raises KeyError"),
        ("(state: State, r: int, b: int)", "(state: State, b: int, r: int)", "its parameters are"),
        ("def grow(", "def grown(", "there is no function grow"),
    ],
)
def test_refutation_says_what_is_wrong(old: str, new: str, says: str) -> None:
    """A refuted translation says on which path, and what was seen instead of what is declared."""
    result = rewritten(old, new)

    assert result.verdict is Verdict.REFUTED
    assert result.counterexample is not None
    assert result.counterexample.row in {"grow", ""}
    assert says in result.counterexample.explanation


def test_refutation_shows_inputs_and_the_wrong_cell() -> None:
    """A refuted translation shows a state and arguments, and the cells that come out wrong."""
    found = rewritten("pool.free -= 1", "pool.free -= 2").counterexample

    assert found is not None
    inputs, wrong = dict(found.before), dict(found.after)
    assert set(wrong) == {"free[pool]"}
    assert "status[r]" in inputs
    declared = int(wrong["free[pool]"].split()[1].rstrip(","))
    assert wrong["free[pool]"] == f"declared {declared}, saw {declared - 1}"


def test_victim_that_is_its_own_needy_is_a_case_of_its_own() -> None:
    """A function that is wrong only where two parameters name one instance is refuted."""
    text = (core_folder() / "rows.py").read_text(encoding="utf-8")
    guard = "if not (\n        request.status[victim] == RUNNING\n"
    names = names_in(text.replace(guard, f"{guard}        and victim != needy\n"))

    result = row_translates(SCHEDULER, ROWS["preempt"], names)

    assert result.verdict is Verdict.REFUTED


def test_module_that_cannot_be_run_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that is no Python is a refuted translation of every row, not an error of the check."""
    monkeypatch.setattr("kvproof.verify.translation.names_on_disk", lambda _: names_in("def ("))

    results = check_translation(SCHEDULER)

    assert {r.verdict for r in results} == {Verdict.REFUTED}
    assert all(
        r.counterexample and "cannot be run" in r.counterexample.explanation for r in results
    )


def test_text_on_disk_is_checked_and_not_what_was_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change on disk is seen by a process that has imported the core before it."""
    text = (core_folder() / "rows.py").read_text(encoding="utf-8")
    (tmp_path / "rows.py").write_text(text.replace("pool.free -= 1", "pool.free -= 2"))
    (tmp_path / "batches.py").write_text("")
    monkeypatch.setattr("kvproof.verify.core_text.core_folder", lambda: tmp_path)

    verdicts = {r.name: r.verdict for r in check_translation(SCHEDULER)}

    assert verdicts["grow is translated"] is Verdict.REFUTED
    assert verdicts["admit is translated"] is Verdict.PROVED


# --- Freshness ------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the core into a folder of its own."""
    for name, text in generated_files(SCHEDULER).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def refuted(folder: Path) -> dict[str, str]:
    """Return what is said of each refuted claim about a folder."""
    results = check_freshness(SCHEDULER, folder)
    return {r.name: r.counterexample.explanation for r in results if r.counterexample is not None}


def test_core_on_disk_is_fresh() -> None:
    """The core has the declaration's digest, and every file is what the generator writes."""
    results = check_freshness(SCHEDULER)

    assert [r.name for r in results if r.verdict is not Verdict.PROVED] == []
    assert len(results) == 1 + len(generated_files(SCHEDULER))


def test_one_changed_byte_is_refuted_with_a_diff(folder: Path) -> None:
    """A change of one byte is refuted with the line that is there and the one that belongs."""
    path = folder / "rows.py"
    path.write_text(path.read_text().replace("pool.free -= 1", "pool.free -= 2", 1))

    found = refuted(folder)

    assert set(found) == {"core/rows.py is as generated"}
    assert "-    pool.free -= 2\n+    pool.free -= 1" in found["core/rows.py is as generated"]


def test_changed_line_end_is_refuted(folder: Path) -> None:
    """A file that differs in its line ends alone is refuted too."""
    path = folder / "rows.py"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))

    assert "ends its lines otherwise" in refuted(folder)["core/rows.py is as generated"]


def test_missing_and_strange_files_are_refuted(folder: Path) -> None:
    """A file that is missing and a file that nothing declares are each named."""
    (folder / "tables.py").unlink()
    (folder / "extra.py").write_text("")

    assert set(refuted(folder)) == {
        "core/tables.py is as generated",
        "core/extra.py belongs to the core",
    }


def test_digest_of_another_declaration_is_refuted(folder: Path) -> None:
    """A core generated from another declaration is refuted, with both digests."""
    path = folder / "__init__.py"
    path.write_text(re.sub(r'DIGEST = ".*"', 'DIGEST = "0123"', path.read_text()))

    said = refuted(folder)["core has the digest of the declaration"]

    assert "core has the digest 0123" in said


def test_long_difference_is_cut(folder: Path) -> None:
    """A difference of many lines is shown by its first ones."""
    (folder / "rows.py").write_text("")

    said = refuted(folder)["core/rows.py is as generated"].splitlines()

    assert len(said) == DIFF_LINES_MAX + 1
    assert said[-1].startswith("... and ")
