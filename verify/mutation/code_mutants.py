"""Functions of the core with one fault, and whether the translation check tells them apart.

A mutant of which the check proves that it does what the row says is no fault, but another way to
write the same function.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from attrs import frozen

from kvproof.spec.declaration import Declaration
from kvproof.verify.batch_trials import has_batch
from kvproof.verify.core_text import Names, core_folder, names_in
from kvproof.verify.mutation.code_changes import Changed, Changes
from kvproof.verify.translation import batch_matches, row_translates
from kvproof.verify.verdict import Result

# A function is compiled as its module was: annotations are not evaluated.
FLAGS = annotations.compiler_flag


@frozen(eq=False)
class CodeMutant:
    """A function of a module of the core with one change; `fault` says where and what it is.

    `changed` makes the tree of it: to change thousands at once would take longer than needed.
    """

    fault: str
    module: str
    row: str
    changed: Changed


@frozen
class Module:
    """A module of the core: its name, and the text of it."""

    name: str
    text: str

    @classmethod
    def on_disk(cls, name: str) -> Module:
        """Return a module as it is on disk now."""
        return cls(name, (core_folder() / f"{name}.py").read_text(encoding="utf-8"))

    def functions(self) -> dict[str, ast.FunctionDef]:
        """Return the functions of the module by name."""
        tree = ast.parse(self.text)
        return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}

    def names(self) -> Names:
        """Return what the module defines."""
        return names_in(self.text)


def code_mutants(declaration: Declaration, module: Module) -> Iterator[CodeMutant]:
    """Yield every mutant of the functions that a module has for rows."""
    changes = Changes(declaration)
    for name, function in module.functions().items():
        row = declaration.transition.get(name)
        if row is None or (module.name == "batches" and not has_batch(row)):
            continue
        for change, changed in changes.of(function):
            yield CodeMutant(f"{module.name}.{name} {change}", module.name, name, changed)


def translation_of(declaration: Declaration, mutant: CodeMutant, names: Names) -> Result:
    """Return what the translation check says of a mutant among the other names of its module."""
    changed = dict(names)
    tree = ast.Module([mutant.changed()], [])
    exec(compile(tree, "<mutant>", "exec", FLAGS), changed)
    row = declaration.complete_transitions[mutant.row]
    check = row_translates if mutant.module == "rows" else batch_matches
    return check(declaration, row, changed)
