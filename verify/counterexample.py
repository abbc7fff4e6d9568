"""A counterexample as a reader wants it: the arguments, only the cells that matter, and a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import z3
from attrs import evolve, frozen
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import Choice, Constant, Expression, Formula, Index
from kvproof.spec.rows import Invariant, Parameter
from kvproof.spec.text import text
from kvproof.spec.walk import AnyCell, nodes, rename
from kvproof.verify.search import SECONDS, find_run
from kvproof.verify.setting import Setting
from kvproof.verify.trees import GENERIC, Effects, Rest, after, simplify, substitute
from kvproof.verify.verdict import Counterexample, Method, Result, Verdict

if TYPE_CHECKING:
    from kvproof.verify.induction import Step
    from kvproof.verify.query import Query

UNREACHABLE = "This state is not known to be reachable; the spec may miss a fact."

Trees = dict[str, Expression]


@frozen
class Seen:
    """A state that a solver found, or the one that `change` makes of it."""

    setting: Setting
    model: Any
    change: Callable[[Expression], Expression] = lambda tree: tree

    def term(self, tree: Expression) -> Any:
        """Return the value of a tree in this state, as z3 writes it."""
        return self.model.eval(
            self.setting.terms.of(simplify(self.change(tree))), model_completion=True
        )

    def shown(self, tree: Expression) -> str:
        """Return the value of a tree as a reader writes it: RUNNING, true, 3."""
        value = self.term(tree)
        if isinstance(tree, Choice):
            member, _ = self.setting.declaration.enumeration.members[int(value.as_long())]
            return member
        return str(value).lower() if isinstance(tree, Formula) else str(value)

    def all_shown(self, trees: Trees) -> tuple[tuple[str, str], ...]:
        """Return each label with the value of its tree."""
        return tuple((label, self.shown(tree)) for label, tree in trees.items())

    def falsified(self, invariant: Invariant) -> Expression | None:
        """Return the first instance of the invariant that is false in this state."""
        for names in self.setting.choices_for(invariant.formula):
            tree = self.setting.tree(rename(invariant.formula, names))
            if z3.is_false(self.term(tree)):
                return tree
        return None


def counterexample_to_induction(step: Step, invariant: Invariant) -> Counterexample:
    """Return the state in which the row breaks the invariant, down to the cells that matter.

    These are the cells that the invariant reads, and those that the row changes.
    """
    explanation = f"{step.row.name} breaks {invariant.name}: {invariant.sentence}"
    if step.query.model is None:
        return Counterexample(explanation, step.row.name)
    early = Seen(step.setting, step.query.model)
    late = evolve(early, change=lambda tree: after(tree, step.effects))
    trees = _read(early, late.falsified(invariant))
    for label, cell in _assigned(step.effects, step.setting).items():
        if early.shown(cell) != late.shown(cell):
            trees[label] = cell
    return Counterexample(
        explanation,
        step.row.name,
        tuple((item.name, _argument(step, early, item)) for item in step.row.parameters),
        early.all_shown(trees),
        late.all_shown(trees),
    )


def state_that_breaks(query: Query, invariant: Invariant) -> Counterexample:
    """Return the state, initial or allowed by the other invariants, that breaks the invariant."""
    # Nothing is assumed of the initial state: it is known.
    initial = not query.switches
    claim = "the initial state breaks" if initial else "the other invariants do not imply"
    explanation = f"{claim} {invariant.name}: {invariant.sentence}"
    if query.model is None:
        return Counterexample(explanation)
    seen = Seen(query.setting, query.model)
    if initial:
        seen = evolve(seen, change=lambda tree: _at_start(query.setting.declaration, tree))
    trees = _read(seen, seen.falsified(invariant))
    return Counterexample(explanation, before=seen.all_shown(trees))


def _at_start(declaration: Declaration, tree: Expression) -> Expression:
    from kvproof.verify.induction import initial_value

    return substitute(tree, lambda cell: initial_value(declaration, cell))


def _read(seen: Seen, claim: Expression | None) -> Trees:
    """Return what a claim reads: constants, cells, and sums over instances without a name."""
    trees: Trees = {}
    for part in () if claim is None else nodes(claim):
        if isinstance(part, Rest):
            role = seen.setting.declaration.role[part.index.role]
            trees[f"all other {role.plural or role.name}: {text(part.body)}"] = part
        elif isinstance(part, Constant) or (isinstance(part, AnyCell) and _is_named(part)):
            trees[text(part)] = part
    return trees


def _is_named(cell: AnyCell) -> bool:
    return all(index.name != GENERIC for index in cell.indices)


def _assigned(effects: Effects, setting: Setting) -> Trees:
    """Return the cells of named instances that a row assigns."""
    trees: Trees = {}
    for assignment in effects.assignments.values():
        pools = [setting.instances.get(index.role, ()) for index in assignment.every]
        for chosen in product(*pools):
            cell = rename(assignment.cell, dict(zip(assignment.every, chosen, strict=True)))
            trees[text(cell)] = cell
    return trees


def _argument(step: Step, seen: Seen, parameter: Parameter) -> str:
    if isinstance(parameter, Index):
        return f"{parameter.role} {step.names[parameter].name}"
    return seen.shown(parameter)


def with_program(declaration: Declaration, result: Result, seconds: float = SECONDS) -> Result:
    """Return a refuted result with a run into the fault, or with the remark that none is known.

    The search takes up to so many seconds.
    """
    found = result.counterexample
    invariant = _invariant_of(declaration, result)
    if result.verdict is not Verdict.REFUTED or not found or found.program or not invariant:
        return result
    program = find_run(declaration, invariant.name, result.row, seconds)
    if program is None and result.method is not Method.INITIAL:
        found = evolve(found, explanation=f"{found.explanation} {UNREACHABLE}")
    return evolve(result, counterexample=evolve(found, program=program or ""))


def _invariant_of(declaration: Declaration, result: Result) -> Invariant | None:
    words = set(result.name.split())
    return next((item for item in declaration.all_invariants if item.name in words), None)


def render(result: Result, declaration: Declaration) -> RenderableType:
    """Return a counterexample as a block of text: why, the call, the cells, and the program."""
    found = result.counterexample
    if found is None:
        return Text("")
    return Group(*_parts(found, declaration))


def _parts(found: Counterexample, declaration: Declaration) -> Iterator[RenderableType]:
    yield Text(found.explanation)
    if found.row in declaration.transition:
        arguments = ", ".join(f"{name} = {value}" for name, value in found.arguments)
        where = declaration.transition[found.row].where
        yield Text(f"{found.row}({arguments}), declared at {where}")
    if found.before:
        yield _table(found)
    if found.program:
        yield Text(f"\n{found.program.rstrip()}")


def _table(found: Counterexample) -> Table:
    """Return the cells and their values; what a row leaves alone has one value."""
    late = dict(found.after)
    table = Table("", "before", "after", box=None, show_header=bool(late))
    for label, value in found.before:
        changed = late.get(label, value) != value
        table.add_row(Text(label), value, late[label] if changed else "")
    return table
