"""A stand-in for the core's `State`: a few named instances, and every value is symbolic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from itertools import product
from typing import Any

import numpy as np
from attrs import define, field

from kvproof.spec.declaration import AnyVariable, Declaration
from kvproof.spec.expression import FlagCell, Index
from kvproof.spec.rows import Role
from kvproof.spec.text import text
from kvproof.spec.walk import AnyCell
from kvproof.verify.instances import Place, place_of
from kvproof.verify.symbolic import (
    ColumnFlag,
    SymbolicFlag,
    SymbolicNumber,
    WrongKindError,
    flag_term,
    number_term,
)
from kvproof.verify.symbolic_columns import SymbolicColumn, column
from kvproof.verify.symbolic_tables import TRUE, SymbolicList, SymbolicTables, facts
from kvproof.verify.terms import Term, Terms
from kvproof.verify.trees import Instances

# What stands in a table that is read in order: the entries of each owner, the first one first.
Orders = Mapping[Index, tuple[Index, ...]]


class Record:
    """Attributes that are given once; those that are `fixed` keep the object they were given."""

    def __init__(self, values: Mapping[str, Any], fixed: frozenset[str]) -> None:
        vars(self).update(values)
        vars(self)["_fixed"] = fixed

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse a new name, and another object under a fixed one: views of it would be stale."""
        if name not in vars(self):
            raise AttributeError(f"the state has no {name}")
        if name in vars(self)["_fixed"] and vars(self)[name] is not value:
            raise AttributeError(f"{name} was replaced by another object")
        vars(self)[name] = value


@define
class CellColumn:
    """A column seen one value at a time: a truth value in it is a plain one."""

    role: str
    column: Any

    def __getitem__(self, instance: object) -> Any:
        """Return the value of one instance."""
        value = self.column[place_of(instance, self.role)]
        return SymbolicFlag(value.term) if isinstance(value, ColumnFlag) else value

    def __setitem__(self, instance: object, value: object) -> None:
        """Set the value of one instance."""
        self.column[place_of(instance, self.role)] = value


@define
class Vocabulary:
    """The cells and what they hold before a call; the states of all paths share one."""

    terms: Terms = field(factory=lambda: Terms({}, {}))
    _cells: dict[tuple[str, tuple[Index, ...]], AnyCell] = field(factory=dict)

    def cell(self, variable: AnyVariable, *indices: Index) -> AnyCell:
        """Return the cell of a variable for some instances."""
        key = (variable.name, indices)
        if key not in self._cells:
            cell = variable[indices]
            assert isinstance(cell, AnyCell)
            self._cells[key] = cell
        return self._cells[key]

    def before(self, variable: AnyVariable, *indices: Index) -> SymbolicNumber | SymbolicFlag:
        """Return what the cell holds before the call."""
        kind = SymbolicFlag if variable.flag else SymbolicNumber
        return kind(self.terms.cell(self.cell(variable, *indices)))


@define
class SymbolicState:
    """The state before a call, as an object that looks like the core's and can be changed.

    `places` says where the instances stand; `orders` gives the entries of some tables in order.
    """

    declaration: Declaration
    instances: Instances
    places: Mapping[Index, Place]
    words: Vocabulary
    orders: Orders = field(factory=dict)
    columns: dict[str, SymbolicColumn] = field(factory=dict, init=False)
    tables: dict[str, SymbolicTables] = field(factory=dict, init=False)
    root: Record = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Build the columns and tables, and the object that the code is given."""
        for role in self.declaration.roles:
            for variable in () if role.single else self._stored(role):
                if variable.length is not None:
                    self.tables[variable.name] = self._table(variable)
                else:
                    self.columns[variable.name] = self._column(variable)
        self.root = self._root()

    def copy(self) -> SymbolicState:
        """Return another state before the call, made of one that no call has changed."""
        other = copy(self)
        other.columns = {name: held.copy() for name, held in self.columns.items()}
        other.tables = {name: held.copied() for name, held in self.tables.items()}
        other.root = other._root()
        return other

    # --- Building -------------------------------------------------------------------------------

    def _root(self) -> Record:
        values: dict[str, Any] = {
            constant.name.lower(): SymbolicNumber(self.words.terms.of(constant))
            for constant in self.declaration.constants
        }
        values["operands"] = Record(dict(values), frozenset(values))
        for role in self.declaration.roles:
            values[role.name] = self._single(role) if role.single else self._columns(role)
        return Record(values, frozenset(values))

    def _stored(self, role: Role) -> list[AnyVariable]:
        return [v for v in self.declaration.variables if v.of[0] == role and not v.ghost]

    def _single(self, role: Role) -> Record:
        only = role.index(role.name)
        values = {v.name: self.words.before(v, only) for v in self._stored(role)}
        return Record(values, frozenset())

    def _columns(self, role: Role) -> Record:
        capacity = self._capacity(role)
        values: dict[str, Any] = {}
        cells: dict[str, Any] = {}
        for variable in self._stored(role):
            if variable.length is not None:
                values[variable.name] = cells[variable.name] = self.tables[variable.name]
            else:
                values[variable.name] = self.columns[variable.name]
                cells[variable.name] = CellColumn(role.name, self.columns[variable.name])
        values["scratch"] = np.zeros(capacity, dtype=np.int64)
        values["capacity"] = capacity
        values["cells"] = Record(cells, frozenset(cells))
        return Record(values, frozenset(values))

    def _capacity(self, role: Role) -> int:
        named = (self.places[index] for index in self.instances.get(role.name, ()))
        return max(named, default=role.first - 1) + 1

    def _column(self, variable: AnyVariable) -> SymbolicColumn:
        role, capacity = variable.of[0], self._capacity(variable.of[0])
        stand = {self.places[index]: index for index in self.instances[role.name]}
        # What stands below the first instance is no instance, but it has some value.
        indices = (stand.get(place, role.index(f"none_{place}")) for place in range(capacity))
        return column(self.words.before(variable, index) for index in indices)

    def _table(self, variable: AnyVariable) -> SymbolicTables:
        owner, entry = (role.name for role in variable.of)
        lists = {self.places[i]: self._list(variable, i) for i in self.instances[owner]}
        return SymbolicTables(owner, entry, lists)

    def _list(self, variable: AnyVariable, owner: Index) -> SymbolicList:
        assert variable.length is not None
        entries = self.instances[variable.of[1].name]
        counts = {self.places[e]: self.words.before(variable, owner, e).term for e in entries}
        order = self.orders.get(owner)
        places = None if order is None else tuple(self.places[entry] for entry in order)
        length = self.words.before(variable.length, owner).term
        stands = {} if variable.place is None else self._stands(variable.place, owner, entries)
        return SymbolicList(counts, length, places, stands)

    def _stands(
        self, place: AnyVariable, owner: Index, entries: tuple[Index, ...]
    ) -> dict[Place, Term]:
        return {self.places[e]: self.words.before(place, owner, e).term for e in entries}

    def hypotheses(self) -> list[Term]:
        """Return what is true of the tables because they are lists."""
        found: list[Term] = []
        for name, table in self.tables.items():
            for owner in self.instances[table.owner]:
                item = self._list(self.declaration.variable[name], owner)
                found += facts(item)
        return found

    # --- Reading --------------------------------------------------------------------------------

    def cells(self) -> Iterator[AnyCell]:
        """Yield every stored cell of the named instances."""
        for variable in self.declaration.variables:
            if not variable.ghost:
                roles = variable.of
                pools = [(r.index(r.name),) if r.single else self.instances[r.name] for r in roles]
                for chosen in product(*pools):
                    yield self.words.cell(variable, *chosen)

    def now(self, cell: AnyCell) -> tuple[Term, Term]:
        """Return what the cell holds now, and whether that is known."""
        variable = self.declaration.variable[cell.variable]
        if variable.length is not None:
            owner, entry = (self.places[index] for index in cell.indices)
            length, _ = self.now(self.words.cell(variable.length, cell.indices[0]))
            return self.tables[variable.name].lists[owner].cut_to(length, entry)
        read = flag_term if isinstance(cell, FlagCell) else number_term
        value = self._value(variable, cell)
        term = read(value)
        if term is None:
            raise WrongKindError(f"{text(cell)} was set to {value!r}")
        return term, TRUE

    def _value(self, variable: AnyVariable, cell: AnyCell) -> object:
        if variable.of[0].single:
            return getattr(getattr(self.root, variable.of[0].name), variable.name)
        return self.columns[variable.name][self.places[cell.indices[0]]]
