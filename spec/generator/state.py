"""The state classes: one set of columns for each role, one plain object for each single role."""

from __future__ import annotations

from kvproof.spec.declaration import AnyVariable, Declaration
from kvproof.spec.expression import Constant
from kvproof.spec.generator.layout import call, indent
from kvproof.spec.rows import Role


def stored(declaration: Declaration, role: Role) -> list[AnyVariable]:
    """Return the variables that the core stores for a role, tables included."""
    return [v for v in declaration.variables if v.of[0] == role and not v.ghost]


def class_name(role: Role, ending: str = "") -> str:
    """Return the name of the class that holds the variables of a role."""
    return role.name.capitalize() + ending


def is_table(variable: AnyVariable) -> bool:
    """Return whether the variable is stored as lists of instances."""
    return variable.length is not None


def state_module(declaration: Declaration) -> list[str]:
    """Return the lines of `state.py` below its header."""
    lines = [*_IMPORTS, *_configuration(declaration), *_operands_class(declaration)]
    for role in declaration.roles:
        if role.single:
            lines += _single_class(declaration, role)
        else:
            lines += [*_cells_class(declaration, role), *_columns_class(declaration, role)]
    return [*lines, *_state_class(declaration)]


_IMPORTS = [
    "from __future__ import annotations",
    "",
    "from dataclasses import dataclass",
    "from typing import Final, cast",
    "",
    "import numpy as np",
    "",
    "from kvproof.core.arrays import Cells, Flags, Integers, enlarged",
    "from kvproof.core.tables import Tables",
]


def _configuration(declaration: Declaration) -> list[str]:
    fields = [(constant.name.lower(), constant) for constant in declaration.constants]
    lines = ["@dataclass(frozen=True, slots=True)", "class Configuration:"]
    lines += indent(['"""The constants of the declaration.', ""])
    lines += indent(["A value below its declared minimum raises ValueError.", '"""', ""])
    for name, constant in fields:
        lines.append(f"    {name}: int  # {constant.doc}")
    lines += ["", *indent(_CHECK_MINIMUM)]
    table = [f'    "{name}": {constant.minimum},' for name, constant in fields]
    return ["", "_MINIMUM = {", *table, "}", "", "", *lines]


_CHECK_MINIMUM = [
    "def __post_init__(self) -> None:",
    '    """Refuse a value that the proofs do not cover."""',
    "    for name, minimum in _MINIMUM.items():",
    "        value = getattr(self, name)",
    "        if not isinstance(value, int) or value < minimum:",
    '            message = f"{name} is {value!r}; expected a whole number of at least {minimum}."',
    "            raise ValueError(message)",
]


def _operands_class(declaration: Declaration) -> list[str]:
    names = [constant.name.lower() for constant in declaration.constants]
    lines = ["class Operands:"]
    lines += [
        '    """The constants as arrays without dimensions, for rows that work on columns."""'
    ]
    lines += ["", *indent(_slots(names)), ""]
    lines += ["    def __init__(self, configuration: Configuration) -> None:"]
    lines += ['        """Make an array of each constant."""']
    lines += [f"        self.{n}: Final[Integers] = np.array(configuration.{n})" for n in names]
    return ["", "", *lines]


def _single_class(declaration: Declaration, role: Role) -> list[str]:
    variables = stored(declaration, role)
    lines = [f"class {class_name(role)}:", f'    """{_sentence(role.doc)}"""', ""]
    lines += indent(_slots([variable.name for variable in variables]))
    lines += ["", "    def __init__(self, configuration: Configuration) -> None:"]
    lines += indent(['"""Set every value to what it is at the start."""'], 2)
    for variable in variables:
        kind = "bool" if variable.flag else "int"
        lines.append(f"        self.{variable.name}: {kind} = {_initial(variable)}")
    return ["", "", *lines]


def _initial(variable: AnyVariable) -> str:
    if isinstance(variable.initial, Constant):
        return f"configuration.{variable.initial.name.lower()}"
    return str(bool(variable.initial)) if variable.flag else str(variable.initial)


def _slots(names: list[str]) -> list[str]:
    return ["__slots__ = (", *(f'    "{name}",' for name in names), ")"]


def _sentence(doc: str) -> str:
    return f"{doc[0].upper()}{doc[1:]}."


def _cells_class(declaration: Declaration, role: Role) -> list[str]:
    """Return the class through which a row reads and writes one instance as plain Python values."""
    variables = stored(declaration, role)
    lines = [f"class {class_name(role, 'Cells')}:"]
    lines += [
        f'    """The columns of `{class_name(role, "Columns")}`, one plain value at a time."""'
    ]
    lines += ["", *indent(_slots([variable.name for variable in variables])), ""]
    lines += [f"    def __init__(self, columns: {class_name(role, 'Columns')}) -> None:"]
    lines += ['        """Look at the same memory as the columns."""']
    for variable in variables:
        if is_table(variable):
            lines.append(f"        self.{variable.name} = columns.{variable.name}")
        else:
            kind = "bool" if variable.flag else "int"
            view = f"columns.{variable.name}.data"
            lines.append(f'        self.{variable.name} = cast("Cells[{kind}]", {view})')
    return ["", "", *lines]


def _columns_class(declaration: Declaration, role: Role) -> list[str]:
    variables = stored(declaration, role)
    columns = [variable for variable in variables if not is_table(variable)]
    tables = [variable for variable in variables if is_table(variable)]
    names = [variable.name for variable in variables]
    lines = [f"class {class_name(role, 'Columns')}:", f'    """{_sentence(role.doc)}', ""]
    lines += indent(["One numpy column for each variable; `scratch` is working memory.", '"""', ""])
    lines += indent(_slots(["capacity", "cells", "scratch", *names]))
    lines += ["", "    def __init__(self, capacity: int) -> None:"]
    lines += indent(['"""Make columns for `capacity` instances, each as it is at the start."""'], 2)
    lines += indent(
        ["self.capacity = capacity", "self.scratch: Integers = _integers(capacity, 0)"], 2
    )
    for variable in columns:
        lines.append(f"        {_new_column(variable)}")
    if role.first and any(variable.flag and variable.initial for variable in columns):
        lines += _null_instance(role, columns)
    for variable in tables:
        lines.append(f"        self.{variable.name} = Tables(capacity)")
    lines.append(f"        self.cells = {class_name(role, 'Cells')}(self)")
    lines += _reserve(role, columns, tables)
    return ["", "", *lines]


def _null_instance(role: Role, columns: list[AnyVariable]) -> list[str]:
    lines = [f"        # Instances are numbered from {role.first}; what lies below is none."]
    for variable in columns:
        if variable.flag and variable.initial:
            lines.append(f"        self.{variable.name}[:{role.first}] = False")
    return lines


def _new_column(variable: AnyVariable) -> str:
    if variable.flag:
        return f"self.{variable.name}: Flags = _flags(capacity, {bool(variable.initial)})"
    return f"self.{variable.name}: Integers = _integers(capacity, {variable.initial})"


def _reserve(role: Role, columns: list[AnyVariable], tables: list[AnyVariable]) -> list[str]:
    if role.count is not None:
        return []
    lines = ["", "    def reserve(self, capacity: int) -> None:"]
    lines += indent(
        ['"""Make room for `capacity` instances; earlier views of columns are stale."""'], 2
    )
    lines += indent(["if capacity <= self.capacity:", "    return"], 2)
    lines.append(f"        fresh = {class_name(role, 'Columns')}(capacity)")
    lines.append("        self.scratch = fresh.scratch")
    for variable in columns:
        new = f"enlarged(self.{variable.name}, fresh.{variable.name})"
        lines.append(f"        self.{variable.name} = {new}")
    lines += [f"        self.{variable.name}.reserve(capacity)" for variable in tables]
    lines += indent(["self.capacity = capacity"], 2)
    return [*lines, f"        self.cells = {class_name(role, 'Cells')}(self)"]


def _state_class(declaration: Declaration) -> list[str]:
    constants = [constant.name.lower() for constant in declaration.constants]
    roles = [role.name for role in declaration.roles]
    growing = [r for r in declaration.roles if not r.single and r.count is None]
    lines = [
        "class State:",
        '    """The whole state; only the functions of rows and batches may change it."""',
    ]
    lines += ["", *indent(_slots([*constants, "configuration", "operands", *roles])), ""]
    sizes = [f"{role.plural}: int = 16" for role in growing]
    parameters = ["self", "configuration: Configuration", *sizes]
    lines += indent(call("def __init__", parameters, " -> None:", 1))
    lines += indent(
        ['"""Make the initial state, with room for the given numbers of instances."""'], 2
    )
    lines += ["        self.configuration = configuration"]
    lines += ["        self.operands = Operands(configuration)"]
    lines += [f"        self.{name}: Final = configuration.{name}" for name in constants]
    for role in declaration.roles:
        lines.append(f"        self.{role.name} = {_new_role(role)}")
    return ["", "", *lines, *_HELPERS]


def _new_role(role: Role) -> str:
    if role.single:
        return f"{class_name(role)}(configuration)"
    if role.count is not None:
        extra = f" + {role.first}" if role.first else ""
        return f"{class_name(role, 'Columns')}(configuration.{role.count.name.lower()}{extra})"
    return f"{class_name(role, 'Columns')}({role.plural})"


_HELPERS = [
    "",
    "",
    "def _integers(capacity: int, value: int) -> Integers:",
    "    return np.full(capacity, value, dtype=np.int64)",
    "",
    "",
    "def _flags(capacity: int, value: bool) -> Flags:",
    "    return np.full(capacity, value, dtype=np.bool_)",
]
