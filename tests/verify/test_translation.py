"""The translation check proves the core on disk, and refutes it after any change of meaning."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from kvproof.spec.generator.files import generated_files
from kvproof.spec.scheduler import SCHEDULER
from kvproof.verify.batch_trials import has_batch
from kvproof.verify.core_text import Names, core_folder, names_in
from kvproof.verify.freshness import DIFF_LINES_MAX, check_freshness
from kvproof.verify.run import run
from kvproof.verify.task import Task
from kvproof.verify.translation import batch_matches, check_translation, row_translates
from kvproof.verify.verdict import Method, Result, Verdict

ROWS = SCHEDULER.complete_transitions
METHODS = (Method.TRANSLATION,)
BATCHES = [name for name, row in ROWS.items() if has_batch(row)]

# --- Small changes of meaning ---------------------------------------------------------------------

OPPOSITES: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
STATUSES = [name for name, _ in SCHEDULER.enumeration.members]
VARIABLES = {
    role.name: [v.name for v in SCHEDULER.variables if v.of[0] == role and not v.ghost]
    for role in SCHEDULER.roles
}

Change = Callable[[], None]


def set_field(node: ast.AST, field: str, value: object) -> Change:
    """Return the change that sets one field of a node."""
    return lambda: setattr(node, field, value)


def changes(node: ast.AST) -> Iterator[tuple[str, Change]]:
    """Yield what can be changed about one node, each with a function that does it in place."""
    for kind in type(node).__mro__:
        yield from CHANGES.get(kind, lambda _: iter(()))(node)


def change_operator(node: Any) -> Iterator[tuple[str, Change]]:
    """Turn an operator round: + into -, < into <=."""
    old = node.op
    if type(old) in OPPOSITES:
        new = OPPOSITES[type(old)]()
        yield f"{type(old).__name__} becomes {type(new).__name__}", set_field(node, "op", new)


def change_comparison(node: ast.Compare) -> Iterator[tuple[str, Change]]:
    """Turn a comparison round."""
    new = OPPOSITES[type(node.ops[0])]()
    name = f"{type(node.ops[0]).__name__} becomes {type(new).__name__}"
    yield name, set_field(node, "ops", [new])


def drop_item(node: Any) -> Iterator[tuple[str, Change]]:
    """Drop one conjunct, or one member of a tuple of statuses."""
    field = "values" if isinstance(node, ast.BoolOp) else "elts"
    items = getattr(node, field)
    for place in range(len(items) if len(items) > 1 else 0):
        rest = items[:place] + items[place + 1 :]
        # Of two operands one remains; an operator needs two, so it is written twice.
        rest = rest * 2 if len(rest) == 1 else rest
        name = f"without {ast.unparse(items[place])}"
        yield name, set_field(node, field, rest)


def change_constant(node: ast.Constant) -> Iterator[tuple[str, Change]]:
    """Change a number by one, a truth value to the other."""
    if isinstance(node.value, bool):
        yield f"not {node.value}", set_field(node, "value", not node.value)
    elif isinstance(node.value, int):
        for change in (1, -1):
            new = node.value + change
            yield f"{node.value} becomes {new}", set_field(node, "value", new)


def change_name(node: ast.Name) -> Iterator[tuple[str, Change]]:
    """Put one status for another."""
    if node.id in STATUSES:
        new = STATUSES[STATUSES.index(node.id) - 1]
        yield f"{node.id} becomes {new}", set_field(node, "id", new)


def change_attribute(node: ast.Attribute) -> Iterator[tuple[str, Change]]:
    """Put a variable for another one of the same role."""
    names = VARIABLES.get(ast.unparse(node.value).removesuffix(".cells").removeprefix("state."), [])
    if node.attr in names:
        new = names[names.index(node.attr) - 1]
        yield f"{node.attr} becomes {new}", set_field(node, "attr", new)


def drop_negation(node: ast.UnaryOp) -> Iterator[tuple[str, Change]]:
    """Take a negation out."""
    if isinstance(node.op, ast.Not):
        twice = ast.UnaryOp(ast.Not(), node.operand)
        yield "without not", set_field(node, "operand", twice)


def exchange_branches(node: ast.IfExp) -> Iterator[tuple[str, Change]]:
    """Exchange what a condition chooses."""

    def exchange() -> None:
        node.body, node.orelse = node.orelse, node.body

    yield "branches exchanged", exchange


def exchange_arguments(node: ast.Call) -> Iterator[tuple[str, Change]]:
    """Exchange two neighbouring arguments of a call; of two numbers the larger stays the same."""
    if ast.unparse(node.func) in {"max", "np.maximum"}:
        return
    for place in range(len(node.args) - 1):
        new = list(node.args)
        new[place : place + 2] = new[place + 1], new[place]
        yield f"arguments {place} exchanged", set_field(node, "args", new)


def change_body(node: ast.FunctionDef) -> Iterator[tuple[str, Change]]:
    """Drop a statement, or exchange two of which one reads what the other writes."""
    docstring, *body = node.body
    for place, statement in enumerate(body):
        new = [docstring, *body[:place], *body[place + 1 :]]
        yield f"without `{ast.unparse(statement)}`", set_field(node, "body", new)
    for place, (first, second) in enumerate(pairwise(body)):
        if depends(first, second) or depends(second, first):
            new = [docstring, *body[:place], second, first, *body[place + 2 :]]
            yield f"`{ast.unparse(second)}` first", set_field(node, "body", new)


def depends(reader: ast.stmt, writer: ast.stmt) -> bool:
    """Return whether a statement mentions what another one assigns."""
    targets = getattr(writer, "targets", [getattr(writer, "target", None)])
    written = {ast.unparse(target) for target in targets if target is not None}
    return any(ast.unparse(n) in written for n in ast.walk(reader) if isinstance(n, ast.expr))


CHANGES: Mapping[type, Callable[[Any], Iterator[tuple[str, Change]]]] = {
    ast.BinOp: change_operator,
    ast.AugAssign: change_operator,
    ast.BoolOp: lambda node: iter((*change_operator(node), *drop_item(node))),
    ast.Tuple: drop_item,
    ast.Compare: change_comparison,
    ast.Constant: change_constant,
    ast.Name: change_name,
    ast.Attribute: change_attribute,
    ast.UnaryOp: drop_negation,
    ast.IfExp: exchange_branches,
    ast.Call: exchange_arguments,
    ast.FunctionDef: change_body,
}


def mutants(function: ast.FunctionDef) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield every changed copy of a function, with its line and what was changed."""
    for place, node in enumerate(changeable(function)):
        line = getattr(node, "lineno", function.lineno) - function.lineno
        for number, (name, _) in enumerate(changes(node)):
            changed = copy.deepcopy(function)
            _, change = next(islice(changes(changeable(changed)[place]), number, None))
            change()
            yield f"line {line}: {name}", ast.fix_missing_locations(changed)


def changeable(function: ast.FunctionDef) -> list[ast.AST]:
    """Return a function, and each node of its body."""
    return [function, *(node for statement in function.body for node in ast.walk(statement))]


@cache
def module(name: str) -> tuple[ast.Module, Names]:
    """Return the tree and the names of a module of the core."""
    text = (core_folder() / f"{name}.py").read_text(encoding="utf-8")
    return ast.parse(text), names_in(text)


def function_of(name: str, row: str) -> ast.FunctionDef:
    """Return the tree of a row's function."""
    tree, _ = module(name)
    return next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == row)


def changed_names(name: str, tree: ast.FunctionDef) -> Names:
    """Return the names of a module of the core in which one function is another."""
    names = dict(module(name)[1])
    exec(compile(ast.Module([tree], []), "<mutant>", "exec", annotations.compiler_flag), names)
    return names


def survivors(name: str, row: str, check: Callable[[Names], Result]) -> list[str]:
    """Return the changes to the function of a row that the check does not refute."""
    changed = dict(enumerate(mutants(function_of(name, row))))
    work = [
        Task(str(number), partial(lambda tree: [check(changed_names(name, tree))], tree), METHODS)
        for number, (_, tree) in changed.items()
    ]
    for task, (result,) in run(work, jobs=2):
        if result.verdict is Verdict.REFUTED:
            del changed[int(task.label)]
    return [change for change, _ in changed.values()]


# Changes after which the function does the same in every state, each with the reason.
EQUIVALENT: dict[str, list[str]] = {}


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

    def check(names: Names) -> Result:
        return row_translates(SCHEDULER, ROWS[row], names)

    assert survivors("rows", row, check) == EQUIVALENT.get(f"rows.{row}", [])


@pytest.mark.parametrize("row", BATCHES)
def test_small_change_of_a_batch_form_is_refuted(row: str) -> None:
    """Whatever is changed in the batch form of a row, the check refutes it."""

    def check(names: Names) -> Result:
        return batch_matches(SCHEDULER, ROWS[row], names)

    assert survivors("batches", row, check) == EQUIVALENT.get(f"batches.{row}", [])


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
