"""The batch form of a row: many instances at once, equal to the scalar form applied one by one.

A variable that the row only adds to or takes from is a counter: the value that the i-th instance
sees is the old one and the changes of the instances before it. Any other variable that the row
assigns demands that the instances it belongs to are pairwise distinct, and that is checked; but not
where the row reads nothing that it writes: the last value stays, in an array as in turn.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve, frozen

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import (
    Add,
    AnyOf,
    ChooseNumber,
    Compare,
    Expression,
    FlagCell,
    FlagParameter,
    Index,
    Literal,
    No,
    NumberCell,
    NumberParameter,
    StandsAt,
    Subtract,
)
from kvproof.spec.generator.layout import assigned, call, indent, joined
from kvproof.spec.generator.python import ATOM, Python, attribute, is_single
from kvproof.spec.generator.rows import (
    Effect,
    docstring,
    is_table,
    local_names,
    negated,
    stored_effects,
    used_roles,
)
from kvproof.spec.location import DeclarationError
from kvproof.spec.rows import Transition
from kvproof.spec.text import larger_of, text
from kvproof.spec.walk import AnyCell, children, nodes, read_cells


@frozen
class Counter:
    """A variable that a row changes by `change`, with `sign` + or -."""

    cell: AnyCell
    sign: str
    change: Expression


def batch_function(declaration: Declaration, row: Transition) -> list[str]:
    """Return the lines of the function that applies the row to arrays of parameters."""
    writer = _BatchWriter(declaration, row)
    once = [f"No `{index.name}` may be named twice." for index in writer.named_once()]
    lines = docstring(row, _IN_TURN, *once)
    return [*_signature(row), *indent(lines), *indent(writer.body())]


def _signature(row: Transition) -> list[str]:
    kinds = {Index: "Integers", NumberParameter: "Integers", FlagParameter: "Flags"}
    parameters = [f"{p.name}: {kinds[type(p)]}" for p in row.parameters]
    return call(f"def {row.name}", ["state: State", *parameters], " -> bool:", 0)


_IN_TURN = "Applied to each position of the arrays (one or more) in turn; all of them, or none."


@frozen
class _BatchWriter:
    declaration: Declaration
    row: Transition

    def body(self) -> list[str]:
        """Return the lines of the function below its docstring."""
        checks: list[str] = []
        columns: list[str] = []
        absent: list[str] = []
        conditional: list[Expression] = []
        for part in self.row.guard:
            zero = self._zero(part)
            if self._is_single(part):
                checks.append(self._scalar_python().text(part, 3))
            elif self._is_spending(part):
                checks.append(self._spending(part))
            elif self._is_conditional(part):
                conditional.append(part)
            elif zero is not None:
                absent.append(f"nowhere({self._python().text(zero)})")
            else:
                columns += self._python().conjuncts(part)
        lines = [
            *self._distinct(),
            *self._before(),
            *self._guard(checks, columns, conditional, absent),
            *self._effects(),
            "return True",
        ]
        return [*local_names(used_roles(self.declaration, self.row), lines), *lines]

    def _distinct(self) -> list[str]:
        """Refuse a repeated instance where the row assigns more than counters of it."""
        checks = [
            f"all_distinct(state.{index.role}.scratch, {index.name})" for index in self.named_once()
        ]
        if not checks:
            return []
        return [*joined("if not ", "and", checks, ":", 1), "    return False"]

    def named_once(self) -> list[Index]:
        """Return the indices of which the row assigns more than counters."""
        if self._only_sets():
            return []
        found: dict[Index, None] = {}
        for effect in self._plain_effects():
            found |= dict.fromkeys(self._own_indices(effect.cell))
        return list(found)

    def _only_sets(self) -> bool:
        """Return whether the row reads nothing that it writes, so that the last position counts."""
        effects = stored_effects(self.declaration, self.row)
        trees = [*self.row.guard, *(effect.value for effect in effects)]
        read = {cell.variable for tree in trees for cell in read_cells(tree)}
        return not any(
            effect.cell.variable in read or is_table(self.declaration, effect.cell)
            for effect in effects
        )

    def _own_indices(self, cell: AnyCell) -> tuple[Index, ...]:
        return () if is_single(self.declaration, cell) else cell.indices

    def _counters(self) -> dict[str, Counter]:
        counters = {}
        for effect in stored_effects(self.declaration, self.row):
            value = effect.value
            if isinstance(value, Add | Subtract) and text(value.left) == text(effect.cell):
                sign = "+" if isinstance(value, Add) else "-"
                counters[effect.cell.variable] = Counter(effect.cell, sign, value.right)
        return counters

    def _repeated(self) -> list[Index]:
        """Return the indices that may repeat and whose counters change."""
        distinct = self.named_once()
        found: dict[Index, None] = {}
        for counter in self._counters().values():
            found |= dict.fromkeys(
                index for index in self._own_indices(counter.cell)[:1] if index not in distinct
            )
        return list(found)

    def _before(self) -> list[str]:
        """Name what the instances of one position see of the positions before it."""
        lines = [
            f"{_rank(index)} = occurrences(state.{index.role}.scratch, {index.name})"
            for index in self._repeated()
        ]
        for name, counter in self._seen_counters().items():
            lines += assigned(name, self._seen(counter), 1)
        for cell in self._read_twice():
            place = attribute(self.declaration, cell)
            lines += assigned(cell.variable, f"{place}[{cell.indices[0].name}]", 1)
        for name, same in self._sums_used_twice().items():
            lines += assigned(name, self._plain_python().text(same[0]), 1)
        for part in self.row.guard:
            if self._is_spending(part):
                assert isinstance(part, Compare)
                spent = self._python().text(part.left)
                lines.append(f"{spent}_sum = int(np.add.reduce({spent}))")
        return lines

    def _read_twice(self) -> list[AnyCell]:
        """Return the cells that are fetched once and named, because they are read again."""
        trees = [*self.row.guard, *(effect.value for effect in self._plain_effects())]
        return read_twice(self.declaration, trees, set(self._seen_counters()))

    def _plain_effects(self) -> list[Effect]:
        counters = self._counters()
        effects = stored_effects(self.declaration, self.row)
        return [effect for effect in effects if effect.cell.variable not in counters]

    def _seen_counters(self) -> dict[str, Counter]:
        """Return the counters whose value at each position is needed more than once."""
        compared = [part for part in self.row.guard if not self._is_spending(part)]
        read = [cell.variable for part in compared for cell in read_cells(part)]
        seen = {}
        for name, counter in self._counters().items():
            length_of_table = any(
                self.declaration.variable[effect.cell.variable].length is not None
                and _length_name(self.declaration, effect.cell) == name
                for effect in stored_effects(self.declaration, self.row)
            )
            if (name in read or length_of_table) and not is_table(self.declaration, counter.cell):
                seen[name] = counter
        return seen

    def _seen(self, counter: Counter) -> str:
        place = attribute(self.declaration, counter.cell)
        if is_single(self.declaration, counter.cell):
            return f"{place} {counter.sign} {self._earlier(counter)}"
        index = counter.cell.indices[0]
        if index not in self._repeated():
            return f"{place}[{index.name}]"
        if not (isinstance(counter.change, Literal) and counter.change.value == 1):
            raise DeclarationError(
                self.row.where,
                f"transition {self.row.name!r}: {text(counter.cell)} changes by"
                f" {text(counter.change)} for a repeated {index.role}; only a change by one has a"
                " batch form.",
            )
        return f"{place}[{index.name}] {counter.sign} {_rank(index)}"

    def _earlier(self, counter: Counter) -> str:
        change = counter.change
        if isinstance(change, NumberParameter):
            return f"({change.name}.cumsum() - {change.name})"
        raise DeclarationError(
            self.row.where,
            f"transition {self.row.name!r}: the guard reads {text(counter.cell)}, which changes by"
            f" {text(change)}; only a change by a parameter has a batch form.",
        )

    def _is_spending(self, tree: Expression) -> bool:
        """Return whether the conjunct is `parameter <= counter`, and the row spends just that.

        If no position spends less than nothing, each can afford its part exactly when all
        together can afford the sum.
        """
        if not (isinstance(tree, Compare) and tree.operator == "<="):
            return False
        if not (isinstance(tree.left, NumberParameter) and isinstance(tree.right, NumberCell)):
            return False
        counter = self._counters().get(tree.right.variable)
        spends = counter is not None and counter.sign == "-" and counter.change is tree.left
        return spends and is_single(self.declaration, tree.right) and self._is_counted(tree.left)

    def _is_counted(self, parameter: NumberParameter) -> bool:
        """Return whether the guard says that the parameter is not negative."""
        return any(
            isinstance(part, Compare)
            and part.operator == ">="
            and part.left is parameter
            and isinstance(part.right, Literal)
            and part.right.value >= 0
            for part in self.row.guard
        )

    def _spending(self, tree: Expression) -> str:
        assert isinstance(tree, Compare)
        left = self._python().text(tree.left)
        return f"{left}_sum <= {self._scalar_python().text(tree.right)}"

    def _is_single(self, tree: Expression) -> bool:
        """Return whether the conjunct is the same for every position."""
        own = [cell for cell in read_cells(tree) if not is_single(self.declaration, cell)]
        return not own and not _has_parameters(tree)

    def _is_conditional(self, tree: Expression) -> bool:
        """Return whether the conjunct asks nothing of positions where a single formula holds."""
        return isinstance(tree, AnyOf) and self._is_single(tree.items[0])

    def _conditional(self, tree: Expression) -> list[str]:
        assert isinstance(tree, AnyOf)
        excuse, *others = tree.items
        wanted = self._python().text(others[0] if len(others) == 1 else AnyOf(tuple(others)))
        return [
            f"if {negated(self._scalar_python(), excuse)}:",
            f"    accepted &= {wanted}",
        ]

    def _zero(self, tree: Expression) -> AnyCell | None:
        """Return the cell of which the conjunct says that it is zero, or false, everywhere."""
        if isinstance(tree, Compare) and tree.operator == "==" and isinstance(tree.left, AnyCell):
            literal = isinstance(tree.right, Literal) and tree.right.value == 0
            return tree.left if literal and isinstance(tree.left, NumberCell) else None
        return tree.body if isinstance(tree, No) and isinstance(tree.body, FlagCell) else None

    def _guard(
        self,
        checks: list[str],
        columns: list[str],
        conditional: list[Expression],
        absent: list[str],
    ) -> list[str]:
        lines = []
        if checks:
            lines += [*joined("if not ", "and", checks, ":", 1), "    return False"]
        if columns or conditional:
            start = columns or [f"np.ones(len({self.row.parameters[0].name}), dtype=np.bool_)"]
            lines += joined("accepted = ", "&", start, "", 1)
            absent = ["everywhere(accepted)", *absent]
        elif not absent:
            return lines
        for part in conditional:
            lines += self._conditional(part)
        return [*lines, *joined("if not ", "and", absent, ":", 1), "    return False"]

    def _sums_used_twice(self) -> dict[str, list[Expression]]:
        """Return what the guard computes more than once, under the names that are given to it."""
        found: dict[str, list[Expression]] = {}
        for part in self.row.guard:
            if self._is_single(part) or self._is_spending(part) or self._is_conditional(part):
                continue
            for node in _computed(part):
                found.setdefault(text(node), []).append(node)
        repeated = [same for same in found.values() if len(same) > 1]
        return {f"number_{number}": same for number, same in enumerate(repeated, start=1)}

    def _python(self) -> Python:
        sums = self._sums_used_twice().items()
        names = {id(node): name for name, same in sums for node in same}
        return evolve(self._plain_python(), names=names)

    def _plain_python(self) -> Python:
        seen = {*self._seen_counters(), *(cell.variable for cell in self._read_twice())}

        def cell(tree: AnyCell) -> str:
            if tree.variable in seen:
                return tree.variable
            place = attribute(self.declaration, tree)
            if is_single(self.declaration, tree):
                return place
            return f"{place}[{tree.indices[0].name}]"

        def stands_at(tree: StandsAt) -> str:
            table = NumberCell(tree.table, (tree.owner, tree.entry))
            place, owner = attribute(self.declaration, table), tree.owner
            length = NumberCell(_length_name(self.declaration, table), (owner,))
            position = Python(cell, columns=True, operands=True).text(tree.position)
            return f"{place}.stand_at({owner.name}, {cell(length)}, {position}, {tree.entry.name})"

        return Python(cell, columns=True, operands=True, stands_at=stands_at)

    def _scalar_python(self) -> Python:
        return Python(lambda tree: attribute(self.declaration, tree))

    def _effects(self) -> list[str]:
        lines: list[str] = []
        for effect in stored_effects(self.declaration, self.row):
            lines += self._effect(effect)
        return lines

    def _effect(self, effect: Effect) -> list[str]:
        name, place = effect.cell.variable, attribute(self.declaration, effect.cell)
        if is_table(self.declaration, effect.cell):
            owner, entry = (index.name for index in effect.cell.indices)
            length = _length_name(self.declaration, effect.cell)
            return [f"{place}.put({owner}, {length}, {entry})"]
        counter = self._counters().get(name)
        if is_single(self.declaration, effect.cell):
            return self._single_effect(effect, counter, place)
        target = f"{place}[{effect.cell.indices[0].name}]"
        if counter is None:
            return assigned(target, self._python().text(effect.value), 1)
        change = self._python().text(counter.change, ATOM if counter.sign == "-" else 7)
        if name in self._seen_counters():
            return assigned(target, f"{name} {counter.sign} {change}", 1)
        return assigned(target, change, 1, counter.sign)

    def _single_effect(self, effect: Effect, counter: Counter | None, place: str) -> list[str]:
        if counter is None:
            return assigned(place, self._scalar_python().text(effect.value), 1)
        change = counter.change
        if isinstance(change, Literal):
            first = next(p.name for p in self.row.parameters if isinstance(p, Index))
            count = f"len({first})" if change.value == 1 else f"{change.value} * len({first})"
            return assigned(place, count, 1, counter.sign)
        if any(self._is_spending(part) for part in self.row.guard):
            return assigned(place, f"{self._python().text(change)}_sum", 1, counter.sign)
        total = f"int({self._python().text(change, ATOM)}.sum())"
        return assigned(place, total, 1, counter.sign)


def drain_function(declaration: Declaration, row: Transition) -> list[str]:
    """Return the function that applies the row to every entry of a table, the last one first."""
    owner, entry = (p for p in row.parameters if isinstance(p, Index))
    writer = _DrainWriter(declaration, row, owner, entry)
    lines = [
        f"def {row.name}(state: State, {owner.name}: int) -> Integers | None:",
        *indent(
            docstring(
                row,
                f"Applied to every entry of the table of `{owner.name}`, the last one first; all"
                " of them, or none.",
                "Returns the entries in that order, or None if refused.",
            )
        ),
    ]
    return [*lines, *indent(writer.body())]


@frozen
class _DrainWriter:
    declaration: Declaration
    row: Transition
    owner: Index
    entry: Index

    def body(self) -> list[str]:
        """Return the lines of the function below its docstring."""
        effects = stored_effects(self.declaration, self.row)
        table = next(e.cell for e in effects if is_table(self.declaration, e.cell))
        role = self.owner.role
        length = f"state.{role}.cells.{_length_name(self.declaration, table)}[{self.owner.name}]"
        lines = [
            f"{self.entry.name} = {role}.{table.variable}.backwards({self.owner.name}, {length})",
            f"if not all_distinct(state.{self.entry.role}.scratch, {self.entry.name}):",
            "    return None",
            *self._guard(table),
            *self._before(effects),
        ]
        for effect in effects:
            lines += self._effect(effect)
        lines.append(f"return {self.entry.name}")
        return [*local_names(used_roles(self.declaration, self.row), lines), *lines]

    def _guard(self, table: AnyCell) -> list[str]:
        parts = [
            part
            for part in self.row.guard
            if all(cell.variable != table.variable for cell in read_cells(part))
        ]
        python = Python(self._place)
        if len(parts) == 1:
            return [f"if {negated(python, parts[0])}:", "    return None"]
        items = [python.text(part, 3) for part in parts]
        return [*joined("if not ", "and", items, ":", 1), "    return None"] if items else []

    def _before(self, effects: list[Effect]) -> list[str]:
        lines = []
        for cell in self._read_twice(effects):
            place = attribute(self.declaration, cell)
            lines += assigned(cell.variable, f"{place}[{cell.indices[0].name}]", 1)
        return lines

    def _read_twice(self, effects: list[Effect]) -> list[AnyCell]:
        found = read_twice(self.declaration, [effect.value for effect in effects], set())
        return [cell for cell in found if self.entry in cell.indices]

    def _effect(self, effect: Effect) -> list[str]:
        value = effect.value
        if is_table(self.declaration, effect.cell):
            return []  # The table is emptied by its length; entries beyond it mean nothing.
        python = self._python()
        target = self._place(effect.cell)
        if isinstance(value, Add | Subtract) and text(value.left) == text(effect.cell):
            sign = "+" if isinstance(value, Add) else "-"
            change = python.text(value.right, ATOM)
            if self.entry in effect.cell.indices:
                return assigned(target, change, 1, sign)
            if isinstance(value.right, Literal):
                return assigned(target, f"len({self.entry.name})", 1, sign)
            return assigned(target, f"int({change}.sum())", 1, sign)
        return assigned(target, python.text(value), 1)

    def _place(self, tree: AnyCell) -> str:
        place = attribute(self.declaration, tree)
        if is_single(self.declaration, tree):
            return place
        index = tree.indices[0]
        if index == self.owner:
            role, _, name = place.partition(".")
            return f"{role}.cells.{name}[{index.name}]"
        return f"{place}[{index.name}]"

    def _python(self) -> Python:
        named = {
            cell.variable for cell in self._read_twice(stored_effects(self.declaration, self.row))
        }

        def cell(tree: AnyCell) -> str:
            return tree.variable if tree.variable in named else self._place(tree)

        return Python(cell, columns=True, operands=True)


def read_twice(declaration: Declaration, trees: list[Expression], named: set[str]) -> list[AnyCell]:
    """Return the column cells that the trees read more than once and that have no name yet."""
    seen: dict[str, list[AnyCell]] = {}
    for tree in trees:
        for cell in read_cells(tree):
            if not is_single(declaration, cell) and not is_table(declaration, cell):
                seen.setdefault(cell.variable, []).append(cell)
    return [found[0] for name, found in seen.items() if len(found) > 1 and name not in named]


def _length_name(declaration: Declaration, cell: AnyCell) -> str:
    length = declaration.variable[cell.variable].length
    assert length is not None
    return length.name


def _rank(index: Index) -> str:
    return f"{index.name}_rank"


def _computed(tree: Expression) -> Iterator[Expression]:
    """Yield the sums in a tree, and the larger ones of two numbers as a whole."""
    if isinstance(tree, ChooseNumber) and larger_of(tree) is not None:
        yield tree
        return
    if isinstance(tree, Add | Subtract):
        yield tree
    for part in children(tree):
        yield from _computed(part)


def _has_parameters(tree: Expression) -> bool:
    return any(isinstance(node, NumberParameter | FlagParameter) for node in nodes(tree))
