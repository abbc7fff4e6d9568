"""The command line: what it prints, what it writes, and what it exits with."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvproof import __version__
from kvproof.cli.application import application
from kvproof.cli.generate import core_folder
from kvproof.spec.diagram import dot, mermaid
from kvproof.spec.digest import digest
from kvproof.spec.generator import files as generated
from kvproof.spec.generator.writer import MARK
from kvproof.spec.scheduler import SCHEDULER
from kvproof.spec.table import document, properties_table
from kvproof.verify import run, solvers
from kvproof.verify.mutation import verdicts
from kvproof.verify.mutation.fates import Fate, Outcome
from kvproof.verify.mutation.score import Score
from kvproof.verify.task import Task
from kvproof.verify.verdict import Counterexample, Method, Verdict
from kvproof.verify.verdict import Result as Obligation

Tasks = Callable[..., None]


def invoke(*arguments: str | Path) -> Result:
    """Return what the command line does with these arguments."""
    return CliRunner().invoke(application, [str(argument) for argument in arguments])


def complaint(result: Result) -> str:
    """Return the message of a usage error as one line, without the box around it."""
    return re.sub(r"[│╭╮╰╯─\s]+", " ", result.stderr)


def obligation(verdict: Verdict, name: str) -> Obligation:
    """Return an obligation that ended in this way."""
    reason = None if verdict is Verdict.PROVED else Counterexample("because it is so")
    return Obligation(name, "S1", "grow", Method.INDUCTION, verdict, 0.5, reason)


@pytest.fixture
def with_verdicts(monkeypatch: pytest.MonkeyPatch) -> Tasks:
    """Let the work be a few obligations that end as they are told to."""

    def replace(*verdicts: Verdict) -> None:
        found = [obligation(verdict, f"obligation {n}") for n, verdict in enumerate(verdicts)]
        work = [
            Task(item.name, lambda item=item: [item], (Method.INDUCTION,))  # type: ignore[misc]
            for item in found
        ]
        monkeypatch.setattr(run, "tasks", lambda declaration: work)

    return replace


# --- verify ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([Verdict.PROVED, Verdict.PROVED], 0),
        ([Verdict.PROVED, Verdict.REFUTED], 1),
        ([Verdict.UNKNOWN, Verdict.REFUTED], 1),
        ([Verdict.PROVED, Verdict.UNKNOWN], 3),
    ],
)
def test_verify_exits_with_what_became_of_the_proofs(
    with_verdicts: Tasks, verdicts: list[Verdict], code: int, jobs: str
) -> None:
    """All proved is 0, anything refuted is 1, else anything unknown is 3."""
    with_verdicts(*verdicts)

    assert invoke("verify", "--jobs", jobs).exit_code == code


def test_verify_prints_progress_the_matrix_and_the_reasons(with_verdicts: Tasks) -> None:
    """Without a terminal each task is a plain line; then come the matrix, reasons and totals."""
    with_verdicts(Verdict.PROVED, Verdict.REFUTED)

    output = invoke("verify", "--jobs", "1").stdout

    assert "[1/2] obligation 0: 1 proved" in output
    assert "S1" in output
    assert "refuted: S1 obligation 1" in output
    assert "because it is so" in output
    assert "2 obligations: 1 proved, 1 refuted, 0 unknown" in output


def test_verify_writes_json(with_verdicts: Tasks, tmp_path: Path) -> None:
    """The file lists every obligation with its name, property, row, method, verdict and time."""
    with_verdicts(Verdict.PROVED, Verdict.UNKNOWN)

    invoke("verify", "--jobs", "1", "--json", tmp_path / "out.json")

    form = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert form["declaration"] == digest(SCHEDULER)
    assert [item["verdict"] for item in form["obligations"]] == ["proved", "unknown"]
    assert form["obligations"][0] == {
        "name": "obligation 0",
        "property": "S1",
        "row": "grow",
        "method": "induction",
        "verdict": "proved",
        "seconds": 0.5,
    }


def test_verify_can_be_asked_for_a_part(with_verdicts: Tasks) -> None:
    """A refuted obligation that was not asked for is neither printed nor counted."""
    with_verdicts(Verdict.PROVED, Verdict.REFUTED)

    result = invoke("verify", "--jobs", "1", "--only", "obligation 0")

    assert result.exit_code == 0
    assert "1 obligations: 1 proved" in result.stdout


def test_verify_never_hides_a_check_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that raises makes the whole run unknown, even when another part was asked for."""

    def stumble() -> list[Obligation]:
        raise ZeroDivisionError("a fault in the check")

    work = [Task("faulty", stumble, (Method.INDUCTION,))]
    monkeypatch.setattr(run, "tasks", lambda declaration: work)

    result = invoke("verify", "--jobs", "1", "--only", "S1")

    assert result.exit_code == 3
    assert "ZeroDivisionError: a fault in the check" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--jobs", "0"), "--jobs"),
        (("--solver", "cvc4"), "'cvc4' is no solver; give z3 or cvc5"),
        (("--json", Path("no such folder") / "out.json"), "does not exist; make it first"),
        (("--only", "nothing is called so"), "is no part of any name, property, row or method"),
        (("--unheard-of",), "--unheard-of"),
        (("extra",), "extra"),
    ],
)
def test_verify_refuses_wrong_usage(
    with_verdicts: Tasks, arguments: tuple[str | Path, ...], message: str
) -> None:
    """Wrong usage exits with 2 and says what was wrong."""
    with_verdicts(Verdict.PROVED)

    result = invoke("verify", "--jobs", "1", *arguments)

    assert result.exit_code == 2
    assert message in complaint(result)


def test_verify_says_how_to_get_a_missing_solver(
    monkeypatch: pytest.MonkeyPatch, with_verdicts: Tasks
) -> None:
    """A solver that is not installed is wrong usage, and the message names the extra."""
    with_verdicts(Verdict.PROVED)

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(solvers, "import_module", missing)

    result = invoke("verify", "--solver", "cvc5")

    assert result.exit_code == 2
    assert "kvproof[cvc5]" in complaint(result)


# --- spec -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), document(SCHEDULER)),
        (("--format", "markdown"), document(SCHEDULER)),
        (("--format", "mermaid"), mermaid(SCHEDULER)),
        (("--format", "dot"), dot(SCHEDULER)),
        (("--format", "properties"), properties_table(SCHEDULER)),
    ],
)
def test_spec_prints_the_declaration(arguments: tuple[str, ...], expected: str) -> None:
    """Each format is printed as the library makes it, and nothing else."""
    result = invoke("spec", *arguments)

    assert result.exit_code == 0
    assert result.stdout == expected + "\n"


def test_spec_refuses_an_unknown_format() -> None:
    """A format that does not exist is wrong usage."""
    assert invoke("spec", "--format", "pdf").exit_code == 2


# --- generate -------------------------------------------------------------------------------------


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Let the generator write two small files into a folder of its own."""
    files = {"rows.py": f'"""{MARK}."""\n\nROWS = 1\n', "inner/state.py": f'"""{MARK}."""\n'}
    monkeypatch.setattr(generated, "generated_files", lambda declaration: files)
    monkeypatch.setattr("kvproof.cli.generate.core_folder", lambda: tmp_path / "core")
    (tmp_path / "core").mkdir()
    return tmp_path / "core"


def test_generate_writes_only_what_changed(core: Path) -> None:
    """The first run writes all files, the second none, and a changed one is written again."""
    assert invoke("generate").stdout.splitlines() == [
        "wrote core/inner/state.py",
        "wrote core/rows.py",
    ]
    assert invoke("generate").stdout == "nothing has changed\n"
    (core / "rows.py").write_text("ROWS = 2\n", encoding="utf-8")
    assert invoke("generate").stdout == "wrote core/rows.py\n"
    assert "ROWS = 1" in (core / "rows.py").read_text(encoding="utf-8")


def test_generate_removes_stale_files_and_no_others(core: Path) -> None:
    """A file that was generated once and is no more is removed; one written by hand stays."""
    invoke("generate")
    (core / "old.py").write_text(f'"""{MARK} from a declaration of the past."""\n', "utf-8")
    (core / "by_hand.py").write_text("ANSWER = 42\n", "utf-8")

    output = invoke("generate").stdout

    assert output == "removed core/old.py, which nothing declares any more\n"
    assert not (core / "old.py").exists()
    assert (core / "by_hand.py").exists()


@pytest.mark.parametrize(
    ("damage", "lines"),
    [
        (lambda core: (core / "rows.py").write_text("x", "utf-8"), ["-x", "+ROWS = 1"]),
        (lambda core: (core / "rows.py").unlink(), ["+ROWS = 1"]),
        (lambda core: (core / "old.py").write_text(f"# {MARK}\n", "utf-8"), [f"-# {MARK}"]),
        (lambda core: (core / "rows.py").write_bytes(b"ROWS = 1\r\n\xff"), ["+ROWS = 1"]),
    ],
)
def test_check_shows_the_difference(
    core: Path, damage: Callable[[Path], object], lines: list[str]
) -> None:
    """With --check a file that is changed, missing or stale is a diff and 1; nothing is written."""
    invoke("generate")
    damage(core)
    before = {path: path.read_bytes() for path in core.rglob("*.py")}

    result = invoke("generate", "--check")

    assert result.exit_code == 1
    assert all(line in result.stdout.splitlines() for line in lines)
    assert "--- core/" in result.stdout
    assert "run `kvproof generate`" in result.stderr
    assert {path: path.read_bytes() for path in core.rglob("*.py")} == before


def test_check_is_content_with_what_was_written(core: Path) -> None:
    """Straight after it was written, the core is what the declaration says."""
    invoke("generate")

    assert invoke("generate", "--check").exit_code == 0


def test_stdout_prints_and_writes_nothing(core: Path) -> None:
    """With --stdout every file is printed below its name and the folder is left alone."""
    output = invoke("generate", "--stdout").stdout

    assert "# core/rows.py\n" in output
    assert "ROWS = 1" in output
    assert not list(core.iterdir())


def test_check_and_stdout_exclude_each_other(core: Path) -> None:
    """Asking for both is wrong usage."""
    assert invoke("generate", "--check", "--stdout").exit_code == 2


def test_the_core_in_this_checkout_is_current() -> None:
    """What is checked in is what the declaration says."""
    result = invoke("generate", "--check")

    assert result.exit_code == 0, result.stdout


def test_the_core_is_found_without_running_it() -> None:
    """The folder is found even if what is in it could not be imported."""
    assert (core_folder() / "__init__.py").is_file()


# --- The command itself ---------------------------------------------------------------------------


def test_version() -> None:
    """The version is the package's."""
    assert invoke("--version").stdout == f"kvproof {__version__}\n"


def test_without_a_command_help_is_shown() -> None:
    """Called bare it lists its commands and exits with 2."""
    result = invoke()

    assert result.exit_code == 2
    assert all(command in result.output for command in ("verify", "spec", "generate"))


def test_an_unknown_command_is_wrong_usage() -> None:
    """A command that does not exist is wrong usage."""
    assert invoke("prove").exit_code == 2


def test_the_package_can_be_run() -> None:
    """`python -m kvproof` is the same command."""
    done = subprocess.run(
        [sys.executable, "-m", "kvproof", "--version"], capture_output=True, text=True, check=True
    )

    assert done.stdout == f"kvproof {__version__}\n"


def test_starting_loads_nothing_heavy() -> None:
    """The command line is there before any solver or tensor library is loaded."""
    heavy = ("z3", "torch", "numpy", "hypothesis", "kvproof.spec", "kvproof.verify")
    program = (
        "import sys, kvproof.__main__\n"
        f"sys.stdout.write(' '.join(n for n in {heavy} if n in sys.modules))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout == ""


def test_a_mistake_in_the_declaration_is_a_message(tmp_path: Path) -> None:
    """A declaration that is refused ends the command with 1, its line and no traceback."""
    program = (
        "import sys\n"
        "from kvproof.spec import declaration\n"
        "from kvproof.spec.location import DeclarationError, Location\n"
        "def refuse(self): raise DeclarationError(Location('rows.py', 7), 'a mistake')\n"
        "declaration.Declaration.__attrs_post_init__ = refuse\n"
        "from kvproof.__main__ import main\n"
        "sys.argv = ['kvproof', 'verify']\n"
        "main()\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert "rows.py:7: a mistake" in done.stderr
    assert "Traceback" not in done.stderr


# --- mutate ---------------------------------------------------------------------------------------


def test_mutate_tries_each_fault_of_a_row(tmp_path: Path) -> None:
    """Faults of a row and its functions are tried, counted and written, with who noticed them."""
    out = tmp_path / "out.json"

    result = invoke("mutate", "--only", "unpublish", "--jobs", "1", "--json", out)

    form = json.loads(out.read_text(encoding="utf-8"))
    assert result.exit_code == 0
    assert "spec unpublish: 7 killed" in result.stdout
    assert {item["side"] for item in form["faults"]} == {"spec", "code"}
    assert {item["fate"] for item in form["faults"]} == {"killed"}
    assert all(item["by"] and item["row"] == "unpublish" for item in form["faults"])
    assert form["summary"]["spec"]["score"] == 1.0
    assert f"{len(form['faults'])} faults, 0 survive, 0 unknown" in result.stdout


def test_mutate_lists_justified_faults() -> None:
    """A fault that nothing notices and that is justified is printed with its reason."""
    result = invoke("mutate", "--only", "load_now with guard external >= 0*", "--jobs", "1")

    assert result.exit_code == 0
    assert "justified (1): To load no token changes nothing." in result.stdout


@pytest.mark.parametrize(
    ("fates", "wrong", "code"),
    [
        ((Fate.KILLED, Fate.EQUIVALENT, Fate.JUSTIFIED), (), 0),
        ((Fate.KILLED, Fate.SURVIVED), (), 1),
        ((Fate.KILLED,), ("a reason that is not needed",), 1),
        ((Fate.SURVIVED, Fate.UNKNOWN), (), 1),
        ((Fate.KILLED, Fate.UNKNOWN), (), 3),
    ],
)
def test_mutate_exits_with_what_became_of_the_faults(
    monkeypatch: pytest.MonkeyPatch, fates: tuple[Fate, ...], wrong: tuple[str, ...], code: int
) -> None:
    """Survivors and reasons that are not needed are 1, else anything unknown is 3, else 0."""
    found = [Outcome("spec", "grow", f"fault {n}", fate) for n, fate in enumerate(fates)]
    monkeypatch.setattr(verdicts, "scored", lambda *_, **__: Score(found, wrong))

    result = invoke("mutate", "--only", "unpublish without guard*", "--jobs", "1")

    assert result.exit_code == code
    assert all(line in result.stdout for line in wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--jobs", "0"), "--jobs"),
        (("--json", Path("no such folder") / "out.json"), "does not exist; make it first"),
        (("--only", "nothing is called so"), "is no row and no part of a fault"),
        (("extra",), "extra"),
    ],
)
def test_mutate_refuses_wrong_usage(arguments: tuple[str | Path, ...], message: str) -> None:
    """Wrong usage exits with 2 and says what was wrong."""
    result = invoke("mutate", *arguments)

    assert result.exit_code == 2
    assert message in complaint(result)
