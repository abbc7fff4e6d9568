"""The generator writes readable Python from miniature declarations, or says why it cannot."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from textwrap import dedent

import pytest

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import (
    Choice,
    Constant,
    FlagParameter,
    Formula,
    Number,
    NumberParameter,
    all_of,
    any_of,
    choose,
    count_if,
    every,
    implies,
    larger,
    no,
    total,
)
from kvproof.spec.generator.batches import batch_function, drain_function
from kvproof.spec.generator.files import generated_files
from kvproof.spec.generator.invariants import invariant_function
from kvproof.spec.generator.rows import scalar_function
from kvproof.spec.location import DeclarationError
from kvproof.spec.rows import Enumeration, Invariant, Role, Transition, Variable
from kvproof.spec.scheduler import SCHEDULER
from kvproof.verify.core_text import names_in
from kvproof.verify.translation import batch_matches, row_translates
from kvproof.verify.verdict import Verdict

ROOT = Path(__file__).resolve().parents[2]

# --- A library that lends books -------------------------------------------------------------------

COPIES = Constant("COPIES", "books that there are")
Mood = Enumeration("Mood", "what a reader does", (("AWAY", "is at home"), ("HERE", "reads")))
AWAY, HERE = Mood["AWAY"], Mood["HERE"]

reader = Role("reader", "one who borrows", plural="readers")
book = Role("book", "what is borrowed", plural="books", count=COPIES, first=1)
desk = Role("desk", "where it is written down", single=True)

mood = Variable[Choice]("mood", (reader,), "what the reader does", enumeration=Mood)
taken = Variable[Number]("taken", (reader,), "books on the reader's list")
fines = Variable[Number]("fines", (reader,), "what the reader owes")
trusted = Variable[Formula]("trusted", (reader,), "the reader is trusted", flag=True)
shelf = Variable[Number]("shelf", (reader, book), "the reader's list", length=taken)
uses = Variable[Number]("uses", (book,), "times the book was lent")
new = Variable[Formula]("new", (book,), "the book was never lent", initial=1, flag=True)
lent = Variable[Number]("lent", (desk,), "books lent")
left = Variable[Number]("left", (desk,), "books that may be lent today", initial=COPIES)
seen = Variable[Number]("seen", (desk,), "readers ever seen", ghost=True)

VARIABLES = (mood, taken, fines, trusted, shelf, uses, new, lent, left, seen)

r, other, x = reader.index("r"), reader.index("other"), reader.index("x")
b, y = book.index("b"), book.index("y")
fee = NumberParameter("fee", "what is owed")
good = FlagParameter("good", "the reader is to be trusted")


def library(*rows: Transition, invariants: tuple[Invariant, ...] = ()) -> Declaration:
    """Return a declaration with these rows; they need not be all that a library needs."""
    parts = (COPIES,), (reader, book, desk), Mood, mood, VARIABLES, rows, invariants
    return Declaration("library", *parts, checked=False)


def scalar(row: Transition) -> str:
    """Return the scalar function of a row; that it does what the row says is proved first."""
    declaration = library(row)
    full = declaration.complete_transitions[row.name]
    text = joined(scalar_function(declaration, full))
    proved(row_translates(declaration, full, names_in(HEADER + text)).verdict)
    return text


def batch(row: Transition) -> str:
    """Return the batch form of a row; that it does what the row says is proved first."""
    declaration = library(row)
    full = declaration.complete_transitions[row.name]
    text = joined((drain_function if row.drains else batch_function)(declaration, full))
    proved(batch_matches(declaration, full, names_in(HEADER + text)).verdict)
    return text


def proved(verdict: Verdict) -> None:
    """Fail unless the text means what is declared."""
    assert verdict is Verdict.PROVED


HEADER = """
from __future__ import annotations
import numpy as np
from kvproof.core.arrays import *
AWAY, HERE = 0, 1
_AWAY, _HERE = np.array(AWAY), np.array(HERE)
"""


def joined(lines: Iterable[str]) -> str:
    """Return lines as one text."""
    return "\n".join(lines) + "\n"


def expected(text: str) -> str:
    """Return a text of this file as it is compared: without its indentation."""
    return dedent(text).lstrip("\n")


# --- Scalar functions -----------------------------------------------------------------------------


def test_guard_and_effects_of_one_instance() -> None:
    """A row is a guard that refuses, and effects in the order in which each reads old values."""
    row = Transition(
        "visit",
        "A reader comes in and pays.",
        "house rules",
        parameters=(r, fee, good),
        subject=r,
        source=(AWAY,),
        target=HERE,
        guard=(fee >= 1, any_of(fines[r] > 0, good)),
        effect=(
            fines[r].becomes(fines[r] - fee),
            lent[desk].becomes(fines[r] + 1),
            seen[desk].becomes(seen[desk] + 1),
            trusted[r].becomes(good),
        ),
    )

    assert scalar(row) == expected(
        '''
        def visit(state: State, r: int, fee: int, good: bool) -> bool:
            """A reader comes in and pays.

            Rule: house rules.
            """
            reader, desk = state.reader.cells, state.desk
            if not (reader.mood[r] == AWAY and fee >= 1 and (reader.fines[r] > 0 or good)):
                return False
            desk.lent = reader.fines[r] + 1
            reader.fines[r] -= fee
            reader.trusted[r] = good
            reader.mood[r] = HERE
            return True
        '''
    )


def test_long_guard_has_a_conjunct_a_line() -> None:
    """A guard that is too long for a line has one conjunct a line."""
    row = Transition(
        "settle",
        "Two readers settle what they owe.",
        "house rules",
        parameters=(r, other, fee),
        guard=(
            mood[r] == HERE,
            mood[other].is_in(AWAY, HERE),
            fines[r] - (fines[other] - fee) <= COPIES * 2,
            no(all_of(trusted[r], trusted[other])),
        ),
        effect=(lent[desk].becomes(choose(trusted[r], fines[r] + 1, 2)),),
    )

    assert scalar(row) == expected(
        '''
        def settle(state: State, r: int, other: int, fee: int) -> bool:
            """Two readers settle what they owe.

            Rule: house rules.
            """
            reader, desk = state.reader.cells, state.desk
            if not (
                reader.mood[r] == HERE
                and reader.mood[other] in (AWAY, HERE)
                and reader.fines[r] - (reader.fines[other] - fee) <= state.copies * 2
                and not (reader.trusted[r] and reader.trusted[other])
            ):
                return False
            desk.lent = reader.fines[r] + 1 if reader.trusted[r] else 2
            return True
        '''
    )


def test_list_is_copied_and_emptied_with_its_length() -> None:
    """A list moves by a copy before its length changes; the length alone empties the old one."""
    row = Transition(
        "inherit",
        "A reader takes over the list of another.",
        "house rules",
        parameters=(r, other),
        guard=(taken[r] == 0,),
        effect=(
            taken[other].becomes(0),
            every(y, shelf[other, y].becomes(0)),
        ),
    )

    assert scalar(row) == expected(
        '''
        def inherit(state: State, r: int, other: int) -> bool:
            """A reader takes over the list of another.

            Rule: house rules.
            """
            reader = state.reader.cells
            if reader.taken[r] != 0:
                return False
            reader.taken[other] = 0
            return True
        '''
    )


def test_entries_come_and_go_at_the_old_length() -> None:
    """An entry is put into a list, or taken out of it, before the length of the list changes."""
    lend = Transition(
        "lend",
        "A reader borrows a book.",
        "house rules",
        parameters=(r, b),
        guard=(new[b],),
        effect=(
            taken[r].becomes(taken[r] + 1),
            shelf[r, b].becomes(shelf[r, b] + 1),
            new[b].becomes(value=False),
        ),
    )
    give = Transition(
        "give",
        "A reader brings a book back.",
        "house rules",
        parameters=(r, b),
        guard=(shelf[r, b] >= 1,),
        effect=(taken[r].becomes(taken[r] - 1), shelf[r, b].becomes(shelf[r, b] - 1)),
    )

    assert scalar(lend) == expected(
        '''
        def lend(state: State, r: int, b: int) -> bool:
            """A reader borrows a book.

            Rule: house rules.
            """
            reader, book = state.reader.cells, state.book.cells
            if not book.new[b]:
                return False
            reader.shelf.append(r, reader.taken[r], b)
            reader.taken[r] += 1
            book.new[b] = False
            return True
        '''
    )
    assert scalar(give) == expected(
        '''
        def give(state: State, r: int, b: int) -> bool:
            """A reader brings a book back.

            Rule: house rules.
            """
            reader = state.reader.cells
            if reader.shelf.count(r, reader.taken[r], b) < 1:
                return False
            reader.shelf.remove(r, reader.taken[r], b)
            reader.taken[r] -= 1
            return True
        '''
    )


def test_row_about_every_instance_works_on_columns() -> None:
    """Totals and effects on every instance use whole columns, without what is no instance."""
    row = Transition(
        "close",
        "The day ends.",
        "house rules",
        guard=(total(x, mood[x] == HERE) == 0, total(y, uses[y]) >= 1),
        effect=(
            every(y, uses[y].becomes(uses[y] + count_if(no(new[y])))),
            every(y, new[y].becomes(value=False)),
            every(x, fines[x].becomes(choose(trusted[x], 0, fines[x]))),
            left[desk].becomes(COPIES),
        ),
    )

    assert scalar(row) == expected(
        '''
        def close(state: State) -> bool:
            """The day ends.

            Rule: house rules.
            """
            reader, book, desk = state.reader, state.book, state.desk
            if not (np.count_nonzero(reader.mood == _HERE) == 0 and book.uses[1:].sum() >= 1):
                return False
            book.uses[1:] += ~book.new[1:]
            book.new[1:] = False
            reader.fines[reader.trusted] = ZERO
            desk.left = state.copies
            return True
        '''
    )


@pytest.mark.parametrize(
    ("guard", "written"),
    [
        (any_of(fines[r] == 1, taken[r] == 2), "if not (reader.fines[r] == 1 or"),
        (no(trusted[r]), "if reader.trusted[r]:"),
        (fines[r] < 2, "if not reader.fines[r] < 2:"),
        (fines[r] <= 2, "if reader.fines[r] > 2:"),
        (total(x, mood[x] == HERE) >= 1, "if np.count_nonzero(reader.mood == _HERE) < 1:"),
        (implies(trusted[r], fines[r] == 0), "if not (not reader.trusted[r] or"),
    ],
)
def test_single_conjunct_is_negated_as_a_whole(guard: Formula, written: str) -> None:
    """Where one conjunct is the whole guard, its opposite is written, and not that of a part."""
    effect = (fines[r].becomes(fines[r] + 1),)
    row = Transition("one", "One.", "none", parameters=(r,), guard=(guard,), effect=effect)

    assert written in scalar(row)


def test_comparison_that_two_effects_need_is_worked_out_once() -> None:
    """What several effects on whole columns ask is asked before the first of them."""
    owing = fines[x] >= 1
    row = Transition(
        "remind",
        "Who owes something is reminded.",
        "house rules",
        effect=(
            every(x, fines[x].becomes(fines[x] + count_if(owing))),
            every(x, trusted[x].becomes(all_of(trusted[x], no(owing)))),
        ),
    )

    text = scalar(row)

    assert text.count("reader.fines >= ONE") == 1
    assert "reader.fines += part_1" in text


def test_larger_of_two_numbers_is_one_call() -> None:
    """The larger of two numbers is `max` of one instance, and `np.maximum` of whole columns."""
    row = Transition(
        "round_up",
        "A reader owes at least a fee, and everybody more than they have taken.",
        "house rules",
        parameters=(r, fee),
        guard=(larger(fines[r], fee) <= COPIES,),
        effect=(
            left[desk].becomes(larger(left[desk], fee)),
            every(x, fines[x].becomes(larger(fines[x], taken[x] + 1))),
        ),
    )

    text = scalar(row)

    assert "if max(reader.fines[r], fee) > state.copies:" in text
    assert "desk.left = max(desk.left, fee)" in text
    assert "np.maximum(reader.fines, reader.taken + ONE)" in text


def test_long_count_is_named_before_the_guard() -> None:
    """A count that asks several things of each instance gets a name, one question a line."""
    row = Transition(
        "lock_up",
        "The door is locked when nobody reads who owes something and is not trusted.",
        "house rules",
        guard=(total(x, all_of(mood[x] == HERE, fines[x] >= 1, no(trusted[x]))) == 0,),
        effect=(left[desk].becomes(0),),
    )

    assert scalar(row) == expected(
        '''
        def lock_up(state: State) -> bool:
            """The door is locked when nobody reads who owes something and is not trusted.

            Rule: house rules.
            """
            reader, desk = state.reader, state.desk
            counted = (reader.mood == _HERE) & (reader.fines >= ONE) & ~reader.trusted
            part_1 = np.count_nonzero(counted)
            if part_1 != 0:
                return False
            desk.left = 0
            return True
        '''
    )


# --- Batch forms ----------------------------------------------------------------------------------


def test_batch_form_counts_the_positions_before() -> None:
    """A counter that the guard reads is seen as the positions before it left it."""
    row = Transition(
        "charge",
        "A reader is charged for copies made.",
        "house rules",
        parameters=(r, fee),
        guard=(fee <= left[desk], no(trusted[r])),
        effect=(fines[r].becomes(fee), left[desk].becomes(left[desk] - fee)),
        batched=True,
    )

    text = batch(row)

    assert text.startswith(
        expected(
            '''
            def charge(state: State, r: Integers, fee: Integers) -> bool:
                """A reader is charged for copies made.

                Applied to each position of the arrays (one or more) in turn; all of them, or none.

                Rule: house rules.
                """
            '''
        )
    )
    assert "all_distinct(state.reader.scratch, r)" in text
    assert "fee.cumsum() - fee" in text


def test_batch_form_counts_what_must_be_zero_or_false() -> None:
    """A conjunct that a cell is zero, or no flag is set, costs one count."""
    row = Transition(
        "trust",
        "A reader who owes nothing is trusted.",
        "house rules",
        parameters=(r,),
        guard=(fines[r] == 0, no(trusted[r])),
        effect=(trusted[r].becomes(value=True),),
        batched=True,
    )

    text = batch(row)

    assert "if not (nowhere(reader.fines[r]) and nowhere(reader.trusted[r])):" in text
    assert "accepted" not in text


def test_batch_form_asks_nothing_of_positions_that_a_single_thing_excuses() -> None:
    """A conjunct with an excuse that concerns no position is worked out only without the excuse."""
    row = Transition(
        "lend_out",
        "A reader who has books may owe something as long as no book is lent.",
        "house rules",
        parameters=(r,),
        guard=(taken[r] >= 1, any_of(lent[desk] == 0, fines[r] < 2)),
        effect=(trusted[r].becomes(value=True),),
        batched=True,
    )

    text = batch(row)

    assert "if desk.lent != 0:\n        accepted &= " in text


def test_drain_form_takes_a_whole_list() -> None:
    """A row that drains a list has a form that takes every entry at once."""
    row = Transition(
        "clear",
        "A book leaves the list of a reader.",
        "house rules",
        parameters=(r, b),
        guard=(shelf[r, b] >= 1, fines[r] <= left[desk]),
        effect=(
            shelf[r, b].becomes(shelf[r, b] - 1),
            taken[r].becomes(taken[r] - 1),
            new[b].becomes(uses[b] == 1),
            lent[desk].becomes(lent[desk] - count_if(uses[b] == 1)),
        ),
        drains=shelf,
    )

    assert batch(row) == expected(
        '''
        def clear(state: State, r: int) -> Integers | None:
            """A book leaves the list of a reader.

            Applied to every entry of the table of `r`, the last one first; all of them, or none.
            Returns the entries in that order, or None if refused.

            Rule: house rules.
            """
            reader, book, desk = state.reader, state.book, state.desk
            b = reader.shelf.backwards(r, state.reader.cells.taken[r])
            if not all_distinct(state.book.scratch, b):
                return None
            if not reader.cells.fines[r] <= desk.left:
                return None
            uses = book.uses[b]
            reader.cells.taken[r] -= len(b)
            book.new[b] = uses == ONE
            desk.lent -= int((uses == ONE).sum())
            return b
        '''
    )


# --- Invariants -----------------------------------------------------------------------------------


def test_invariant_is_a_question_about_columns() -> None:
    """A sentence about any instance is answered for all of them; a long one names its parts."""
    row = Invariant(
        "owes_little",
        "A reader who is not trusted owes little.",
        implies(
            all_of(mood[x] == HERE, no(trusted[x]), fines[x] >= 1),
            any_of(fines[x] + 1 == COPIES, all_of(taken[x] == 0, left[desk] >= 1)),
        ),
        property="S1",
    )

    assert joined(invariant_function(library(), row)) == expected(
        '''
        def owes_little(state: State) -> Flags:
            """A reader who is not trusted owes little."""
            reader, desk = state.reader, state.desk
            part_1 = ~((reader.mood == HERE) & ~reader.trusted & (reader.fines >= 1))
            part_2 = (reader.fines + 1 == state.copies) | (reader.taken == 0) & (desk.left >= 1)
            return part_1 | part_2
        '''
    )


def test_invariant_about_counts_is_one_truth_value() -> None:
    """A sentence about no instance in particular is answered by one truth value."""
    formula = lent[desk] == total(x, taken[x]) + total(y, no(new[y]))
    row = Invariant("lent_is_counted", "What is lent is counted.", formula, property="S1")

    assert joined(invariant_function(library(), row)) == expected(
        '''
        def lent_is_counted(state: State) -> bool:
            """What is lent is counted."""
            reader, book, desk = state.reader, state.book, state.desk
            return bool(desk.lent == reader.taken.sum() + (~book.new[1:]).sum())
        '''
    )


# --- What cannot be compiled ----------------------------------------------------------------------


def refusal(row: Transition, *, in_batches: bool = False) -> str:
    """Return what is said of a row that cannot be compiled; it must start with the row's line."""
    declaration = library(row)
    function = batch_function if in_batches else scalar_function
    with pytest.raises(DeclarationError) as caught:
        function(declaration, declaration.complete_transitions[row.name])
    assert str(caught.value).startswith(f"test_generator.py:{caught.value.location.line}: ")
    first, last = row.where.line, row.where.line + 12
    assert first <= caught.value.location.line <= last
    return str(caught.value)


def test_circular_effects_are_refused() -> None:
    """Effects that read each other's old values have no order."""
    row = Transition(
        "swap",
        "What is owed and what is taken change places.",
        "none",
        parameters=(r,),
        effect=(fines[r].becomes(taken[r]), taken[r].becomes(fines[r])),
    )

    assert "transition 'swap': the effects read each other's old values in a circle" in refusal(row)


def test_list_that_changes_by_two_is_refused() -> None:
    """A list changes by one entry at a time."""
    row = Transition(
        "twice",
        "A book is put on the list twice.",
        "none",
        parameters=(r, b),
        effect=(
            shelf[r, b].becomes(shelf[r, b] + 2),
            taken[r].becomes(taken[r] + 2),
        ),
    )

    assert "changed by one entry; saw shelf[r, b] + 2" in refusal(row)


def test_total_in_a_batch_is_refused() -> None:
    """A batch form has no place for a sum over all instances."""
    row = Transition(
        "sum",
        "A reader is fined while others read.",
        "none",
        parameters=(r,),
        guard=(fines[r] + total(x, taken[x]) >= 1,),
        effect=(fines[r].becomes(0),),
        batched=True,
    )

    assert "keep a counter variable instead" in refusal(row, in_batches=True)


def test_repeated_change_of_more_than_one_is_refused_in_a_batch() -> None:
    """A counter of an instance that may repeat changes by one."""
    row = Transition(
        "fine",
        "A reader is fined for a book.",
        "none",
        parameters=(r, b),
        guard=(fines[r] <= COPIES,),
        effect=(fines[r].becomes(fines[r] + 2), new[b].becomes(value=False)),
        batched=True,
    )

    assert "only a change by one has a batch form" in refusal(row, in_batches=True)


def test_total_with_two_roles_is_refused_in_an_invariant() -> None:
    """A sum over one role that reads a cell of another instance has no column form."""
    formula = total(y, choose(fines[x] == 1, uses[y], 0)) == 0
    row = Invariant("mixed", "Mixed.", formula, property="S1")

    with pytest.raises(DeclarationError, match=r"^test_generator\.py:\d+: this total has no"):
        invariant_function(library(), row)


# --- The whole core -------------------------------------------------------------------------------


def test_core_on_disk_is_what_is_generated() -> None:
    """Every file of `core/` is the generator's, byte for byte."""
    for name, text in generated_files(SCHEDULER).items():
        assert (ROOT / "core" / name).read_text(encoding="utf-8") == text, name


def test_generation_is_deterministic() -> None:
    """Another process, with other hashes of strings, writes the same."""
    program = (
        "from kvproof.spec.generator.files import generated_files as g;"
        "from kvproof.spec.scheduler import SCHEDULER as s; import sys;"
        "sys.stdout.write(repr(sorted(g(s).items())))"
    )
    command = [sys.executable, "-c", program]
    done = [
        subprocess.run(command, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True)  # noqa: PLW1510
        for seed in ("1", "2")
    ]

    assert done[0].stdout == done[1].stdout == repr(sorted(generated_files(SCHEDULER).items()))


@pytest.mark.parametrize("arguments", [("format", "--check"), ("check",)])
def test_core_is_formatted_and_clean(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """What the generator writes is what the formatter would, and the linter has no complaint."""
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")
    if ruff is None:
        pytest.skip("ruff is not installed; it comes with the extra `test`")
    (tmp_path / "core").mkdir()
    for name, text in generated_files(SCHEDULER).items():
        (tmp_path / "core" / name).write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)

    command = [ruff, *arguments, "--no-cache", "core"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
