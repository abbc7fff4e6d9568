"""The digest follows what the declaration says, and nothing else."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from attrs import evolve

from kvproof.spec.declaration import Declaration
from kvproof.spec.digest import LENGTH, digest
from kvproof.spec.scheduler import SCHEDULER

SMALL = '''
"""A counter."""
from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import Choice, Constant, Number
from kvproof.spec.rows import Enumeration, Invariant, Role, Transition, Variable, Witness
MOST = Constant("MOST", "the most it counts to")
shop = Role("shop", "the only one", single=True)
Phase = Enumeration("Phase", "where it is", (("OPEN", "always"),))
state = Variable[Choice]("state", (shop,), "where it is", enumeration=Phase)
count = Variable[Number]("count", (shop,), "how many", minimum=0)
s = shop.index("shop")
STEP = Transition("step", "It counts.", "none", (s,), subject=s, source=(Phase["OPEN"],),
    target=Phase["OPEN"], guard=(count[shop] < MOST,),
    effect=(count[shop].becomes(count[shop] + 1),))
BOUND = Invariant("bound", "It ends.", count[shop] <= MOST, "N1")
RUN = Witness("run", "It counts once.", {"MOST": 1}, (("step", 0),))
COUNTER = Declaration("counter", (MOST,), (shop,), Phase, state, (state, count), (STEP,), (BOUND,),
    witnesses=(RUN,))
'''


def loaded(folder: Path, text: str) -> Declaration:
    """Return the declaration that a file of this text makes."""
    path = folder / "counter.py"
    path.write_text(text, encoding="utf-8")
    found = importlib.util.spec_from_file_location("counter", path)
    assert found is not None
    assert found.loader is not None
    module: ModuleType = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    declaration: Declaration = module.COUNTER
    return declaration


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\nMOST", "\n# A comment.\n\n\nMOST"),
        ("COUNTER = Declaration(", "COUNTER = Declaration(\n    # the rows\n    "),
        ('"""A counter."""', '"""Another title."""'),
        ("s = shop", "import string\ns = shop"),
    ],
)
def test_comments_and_layout_do_not_count(tmp_path: Path, old: str, new: str) -> None:
    """Comments, blank lines, line numbers and imports leave the digest as it is."""
    assert old in SMALL

    assert digest(loaded(tmp_path, SMALL.replace(old, new, 1))) == digest(loaded(tmp_path, SMALL))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"counter"', '"meter"'),
        ('Constant("MOST", "the most it counts to"', 'Constant("MOST", "the limit"'),
        ('it counts to")', 'it counts to", minimum=2)'),
        ('"how many", minimum=0', '"how many", minimum=-1'),
        ('"how many", minimum=0', '"how many", minimum=0, initial=1'),
        ('"how many", minimum=0', '"how many", minimum=0, initial=MOST'),
        ('("OPEN", "always")', '("OPEN", "always"), ("SHUT", "never")'),
        ("count[shop] < MOST,", "count[shop] <= MOST,"),
        ("count[shop] < MOST,", "MOST > count[shop], count[shop] >= 0,"),
        ("becomes(count[shop] + 1)", "becomes(1 + count[shop])"),
        ("becomes(count[shop] + 1)", "becomes(count[shop] - 1)"),
        ("It counts.", "It counts on."),
        ('"none", (s,)', '"somewhere", (s,)'),
        ("(s,), subject", "(s,), batched=True, subject"),
        ("It ends.", "It stops."),
        ('count[shop] <= MOST, "N1"', 'count[shop] <= MOST, "N2"'),
        ('{"MOST": 1}', '{"MOST": 2}'),
        ('(("step", 0),)', '(("step", 0), ("step", 0))'),
    ],
)
def test_what_is_said_counts(tmp_path: Path, old: str, new: str) -> None:
    """Every name, bound, initial value, tree, run and sentence is part of the digest."""
    assert old in SMALL

    assert digest(loaded(tmp_path, SMALL.replace(old, new, 1))) != digest(loaded(tmp_path, SMALL))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: evolve(d, transitions=d.transitions[::-1]),
        lambda d: evolve(d, invariants=d.invariants[1:]),
        lambda d: evolve(d, measures=d.measures[1:]),
        lambda d: evolve(d, progress=()),
        lambda d: evolve(d, constants=d.constants[::-1]),
    ],
)
def test_the_list_of_rows_counts(change: Callable[[Declaration], Declaration]) -> None:
    """Leaving out rows, or ordering them otherwise, gives another digest."""
    changed = change(evolve(SCHEDULER, checked=False))

    assert digest(changed) != digest(SCHEDULER)


def test_whether_mistakes_were_looked_for_does_not_count() -> None:
    """A declaration that was built without checks has the digest of the checked one."""
    assert digest(evolve(SCHEDULER, checked=False)) == digest(SCHEDULER)


def test_each_process_gives_the_same_digest() -> None:
    """Neither the hash seed nor the process changes the digest."""
    program = (
        "from kvproof.spec.digest import digest; from kvproof.spec.scheduler import SCHEDULER;"
        "import sys; sys.stdout.write(digest(SCHEDULER))"
    )

    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert seen == {digest(SCHEDULER)}
    assert len(digest(SCHEDULER)) == LENGTH
