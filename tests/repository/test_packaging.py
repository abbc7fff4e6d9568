"""What is shipped: the package list, the wheel, and the links that only type checkers read."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINKS = ROOT / ".types" / "kvproof"
NOT_COPIED = (".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "build")


def configuration() -> dict[str, Any]:
    """Return the tool tables of pyproject.toml."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    tool: dict[str, Any] = tables["tool"]
    return tool


def configuration_version() -> str:
    """Return the version that the wheel is named after."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    version: str = tables["project"]["version"]
    return version


def package_folders() -> dict[str, Path]:
    """Return every package that has its own folder at the root, by import name."""
    mapped = configuration()["setuptools"]["package-dir"]
    return {"kvproof": ROOT / "kvproof"} | {name: ROOT / path for name, path in mapped.items()}


def sources() -> dict[str, Path]:
    """Return every Python file of the packages, by its path inside the wheel."""
    return {
        (Path(*package.split(".")) / path.relative_to(folder)).as_posix(): path
        for package, folder in package_folders().items()
        for path in sorted(folder.rglob("*.py"))
    }


def run(*arguments: str | Path, folder: Path) -> str:
    """Run a Python module in a folder and return what it printed; fail with that if it failed."""
    done = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the checkout, without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    copy, built = folder / "checkout", folder / "built"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
    run("build", "--wheel", "--no-isolation", "--outdir", built, copy, folder=folder)
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> frozenset[str]:
    """Return the path of every file in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return frozenset(archive.namelist())


def test_package_list_equals_the_folders() -> None:
    """The packages in pyproject.toml are exactly the folders on disk that hold Python files."""
    declared = configuration()["setuptools"]["packages"]
    on_disk = {".".join(Path(inside).parent.parts) for inside in sources()}

    assert sorted(on_disk - set(declared)) == [], "add these to packages, or the wheel lacks them"
    assert sorted(set(declared) - on_disk) == [], "take these out of packages, no folder has them"
    assert len(declared) == len(set(declared)), "a package is listed twice"


def test_each_package_folder_is_a_package() -> None:
    """Every folder that holds Python files has an __init__.py."""
    folders = {path.parent for path in sources().values()}
    missing = [
        str(f.relative_to(ROOT)) for f in sorted(folders) if not (f / "__init__.py").exists()
    ]

    assert missing == [], "add an __init__.py with one sentence on what the package is for"


def test_wheel_installs_one_top_level_name(wheel_names: frozenset[str]) -> None:
    """Everything in the wheel is below kvproof/ or is metadata."""
    version = configuration_version()
    allowed = ("kvproof/", f"kvproof-{version}.dist-info/")

    assert [name for name in sorted(wheel_names) if not name.startswith(allowed)] == []


def test_wheel_has_every_module(wheel_names: frozenset[str]) -> None:
    """Every Python file of the packages is in the wheel."""
    assert sorted(set(sources()) - wheel_names) == []


def test_wheel_is_typed_and_licensed(wheel_names: frozenset[str]) -> None:
    """Each package with a folder at the root ships py.typed, and the licence travels along."""
    markers = {name.replace(".", "/") + "/py.typed" for name in package_folders()}

    assert sorted(markers - wheel_names) == []
    assert any(name.endswith("/licenses/LICENSE") for name in wheel_names)


def test_wheel_contents_are_clean(wheel: Path) -> None:
    """The independent checker of wheels finds nothing to say."""
    printed = run("check_wheel_contents", "--toplevel", "kvproof", wheel, folder=wheel.parent)

    assert printed.rstrip().endswith("OK")


def test_types_links_lead_to_the_sources() -> None:
    """Each package and module of kvproof has a link in .types that leads to the real one."""
    if not any(path.is_symlink() for path in LINKS.iterdir()):
        pytest.skip("this checkout lost its symbolic links; only type checking needs them")
    expected = {path.name: path for path in (ROOT / "kvproof").iterdir()}
    expected |= {name.rpartition(".")[2]: path for name, path in package_folders().items()}
    expected = {name: expected[name] for name in expected.keys() - {"kvproof", "__pycache__"}}
    links = {path.name: path for path in LINKS.iterdir()}

    assert links.keys() == expected.keys()
    for name, link in links.items():
        assert link.is_symlink(), f"{link} is a copy: link it to {expected[name]}"
        assert not link.readlink().is_absolute(), f"{link} must be a relative link"
        assert link.resolve() == expected[name]


def test_every_folder_with_python_is_type_checked() -> None:
    """The type checker is told of every folder at the root that holds Python files."""
    through_links = {folder.name for folder in package_folders().values()}
    with_python = {path.name for path in ROOT.glob("[!.]*/") if any(path.rglob("*.py"))} - {"build"}
    checked = set(configuration()["mypy"]["files"])

    assert sorted(with_python - through_links - checked) == [], "add these to files of tool.mypy"
