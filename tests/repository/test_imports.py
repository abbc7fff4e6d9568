"""Who may import whom, read from the source of every module and measured in a fresh process."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# One row a package: what its modules may import besides the standard library.
# The row of the longest matching name applies, and a name allows everything below it.
# A bare "kvproof" would allow every package of ours, so only the command line has it.
ALLOWED: dict[str, frozenset[str]] = {
    "kvproof.spec": frozenset({"attrs", "kvproof.spec"}),
    "kvproof.core": frozenset({"numpy", "kvproof.core"}),
    "kvproof.runtime": frozenset(
        {
            "attrs",
            "cbor2",
            "nixl",
            "numpy",
            "prometheus_client",
            "safetensors",
            "tokenizers",
            "torch",
            "xxhash",
            "kvproof.core",
            "kvproof.runtime",
        }
    ),
    "kvproof.verify": frozenset(
        {
            "attrs",
            "cvc5",
            "hypothesis",
            "numpy",
            "rich",
            "torch",
            "z3",
            "kvproof.core",
            "kvproof.runtime",
            "kvproof.spec",
            "kvproof.verify",
        }
    ),
    "kvproof.cli": frozenset(
        {
            "attrs",
            "cvc5",
            "hypothesis",
            "numpy",
            "rich",
            "tokenizers",
            "torch",
            "typer",
            "z3",
            "kvproof",
        }
    ),
    "kvproof": frozenset({"kvproof.cli"}),
}

# What a server never pays for, and what a reader of the declaration never pays for.
ABSENT_AFTER_IMPORT: dict[str, tuple[str, ...]] = {
    "kvproof.spec": (
        "numpy",
        "torch",
        "z3",
        "cvc5",
        "hypothesis",
        "typer",
        "kvproof.core",
        "kvproof.runtime",
    ),
    "kvproof.core": ("attrs", "torch", "z3", "hypothesis", "kvproof.spec", "kvproof.runtime"),
    "kvproof.runtime": (
        "z3",
        "cvc5",
        "hypothesis",
        "typer",
        "cbor2",
        "prometheus_client",
        "safetensors",
        "xxhash",
        "kvproof.spec",
        "kvproof.verify",
        "kvproof.cli",
    ),
}


def package_folders() -> dict[str, Path]:
    """Return every package that has its own folder at the root, by import name."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    mapped = tomllib.loads(text)["tool"]["setuptools"]["package-dir"]
    return {"kvproof": ROOT / "kvproof"} | {name: ROOT / path for name, path in mapped.items()}


def modules() -> dict[str, Path]:
    """Return the file of every module of the package, by import name."""
    found = {}
    for package, folder in package_folders().items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join((package, *parts))] = path
    return found


def imported_names(tree: ast.AST, known: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of each import, with `from a import b` read as a.b if a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                dotted = f"{base}.{alias.name}"
                yield node.lineno, dotted if dotted in known else base


def is_below(name: str, parent: str) -> bool:
    """Return whether `name` is `parent` or lies below it."""
    return name == parent or name.startswith(parent + ".")


def row_of(module: str) -> str:
    """Return the name of the table row that applies to a module."""
    return max((row for row in ALLOWED if is_below(module, row)), key=len)


def is_allowed(imported: str, row: str) -> bool:
    """Return whether the row lets its modules import this name."""
    top = imported.partition(".")[0]
    return top in sys.stdlib_module_names or any(is_below(imported, a) for a in ALLOWED[row])


def refusals(module: str, path: str, source: str, known: frozenset[str]) -> Iterator[str]:
    """Yield one sentence for each import that the module's row refuses."""
    row = row_of(module)
    for line, imported in imported_names(ast.parse(source), known):
        if imported.startswith("."):
            yield f"{path}:{line}: relative import, write the whole name from kvproof on"
        elif not is_allowed(imported, row):
            allowed = ", ".join(sorted(ALLOWED[row]))
            yield f"{path}:{line}: {module} imports {imported}, {row} may import only {allowed}"


def test_each_module_imports_only_what_its_row_allows() -> None:
    """Every import in every module is one that the table at the top of this file allows."""
    everything = modules()
    known = frozenset(everything)

    found = [
        message
        for module, path in everything.items()
        for message in refusals(
            module, path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"), known
        )
    ]

    assert not found, "\n" + "\n".join(found)


def test_each_package_has_a_row() -> None:
    """A package at the root without a row of its own in the table is refused."""
    missing = sorted(set(package_folders()) - set(ALLOWED))

    assert not missing, f"{missing} have no row in ALLOWED: say what they may import"


@pytest.mark.parametrize("folder", ["tests", "benchmarks"])
def test_tests_and_benchmarks_use_the_public_name(folder: str) -> None:
    """Tests and benchmarks import the package as kvproof, never by folder and never relatively."""
    folders = {path.name for path in package_folders().values()} - {"kvproof"}
    found = [
        f"{path.relative_to(ROOT).as_posix()}:{line}: imports {name}, write kvproof.{name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in imported_names(ast.parse(path.read_text("utf-8")), frozenset())
        if name.partition(".")[0] in folders | {""}
    ]

    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source", "seen"),
    [
        ("kvproof.spec.machine", "import numpy as np", "imports numpy"),
        ("kvproof.core.rows", "from kvproof.spec import machine", "imports kvproof.spec"),
        ("kvproof.core.rows", "from kvproof import spec", "imports kvproof.spec"),
        ("kvproof.core.rows", "import attrs", "imports attrs"),
        ("kvproof.runtime.pool", "def f():\n    import z3", ":2: kvproof.runtime.pool imports z3"),
        ("kvproof.runtime.pool", "import runtime.pool", "imports runtime.pool"),
        ("kvproof.runtime.pool", "from .core import x", "relative import"),
        ("kvproof.verify.proof", "import kvproof.cli", "imports kvproof.cli"),
    ],
)
def test_a_forbidden_import_is_named(module: str, source: str, seen: str) -> None:
    """A planted forbidden import is found and the message says where it is and what it is."""
    known = frozenset({"kvproof", "kvproof.spec", "kvproof.spec.machine"})

    messages = list(refusals(module, "planted.py", source, known))

    assert len(messages) == 1
    assert seen in messages[0]


@pytest.mark.parametrize("package", ABSENT_AFTER_IMPORT)
def test_importing_a_package_loads_nothing_it_must_not(package: str) -> None:
    """In a fresh process, importing one package leaves the heavy and the higher ones unloaded."""
    unwanted = ABSENT_AFTER_IMPORT[package]
    program = (
        f"import sys, {package}\n"
        f"sys.stdout.write(' '.join(n for n in {unwanted!r} if n in sys.modules))"
    )

    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert not done.stdout, f"import {package} also loads {done.stdout}"
