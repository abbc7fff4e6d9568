"""Small faults in rows are noticed; the score of all of them is what `kvproof mutate` prints."""

from itertools import chain

import pytest
from attrs import evolve

from kvproof.spec.check_trees import check_trees
from kvproof.spec.declaration import Declaration
from kvproof.spec.derive import complete
from kvproof.spec.expression import Compare, Literal, Multiply, NumberCell
from kvproof.spec.rows import Witness
from kvproof.spec.scheduler import SCHEDULER
from kvproof.spec.text import text
from kvproof.spec.walk import nodes
from kvproof.verify.mutation.bends import bends
from kvproof.verify.mutation.code_mutants import CodeMutant, Module, code_mutants
from kvproof.verify.mutation.fates import Fate, Outcome, outcome_of, try_code, try_row
from kvproof.verify.mutation.forgotten import forgotten
from kvproof.verify.mutation.justified import Justification, justify
from kvproof.verify.mutation.plan import Choice, Side, plan
from kvproof.verify.mutation.reasons import REASONS
from kvproof.verify.mutation.refutation import first_refutation
from kvproof.verify.mutation.row_mutants import Mutant, mutants, row_mutants
from kvproof.verify.mutation.sameness import difference
from kvproof.verify.mutation.verdicts import scored
from kvproof.verify.query import Sat
from kvproof.verify.task import Task
from kvproof.verify.verdict import Method, Result, Verdict

STATES = SCHEDULER.enumeration
ALL = {row.name: row_mutants(row, STATES) for row in SCHEDULER.transitions}
JUSTIFIED = {fault for reason in REASONS for fault in reason.named()}
# One in so many is tried here, at another place in each row; the command tries them all.
EVERY = 60


def slice_of(name: str) -> list[Mutant]:
    """Return some mutants of a row: the first part that is dropped, and some others."""
    shift = list(ALL).index(name) % EVERY
    row = SCHEDULER.transition[name]
    dropped = [next(mutants(row))] if row.guard or row.effect else []
    return [*dropped, *ALL[name][shift::EVERY]]


def fate(declaration: Declaration, mutant: Mutant) -> Outcome:
    """Return what becomes of one mutant."""
    return outcome_of(mutant, try_row(declaration, mutant))


def find(declaration: Declaration, row: str, fault: str) -> Mutant:
    """Return the mutant of a row that is called by the row's name and these words."""
    made = row_mutants(declaration.transition[row], declaration.enumeration)
    (found,) = [mutant for mutant in made if mutant.fault == f"{row} {fault}"]
    return found


@pytest.mark.parametrize("name", ALL)
def test_faults_of_a_row_are_noticed(name: str) -> None:
    """Of each row, what some of its mutants do differently is refuted, or needs no notice."""
    found = {mutant.fault: fate(SCHEDULER, mutant) for mutant in slice_of(name)}

    survivors = [fault for fault, outcome in found.items() if outcome.fate is Fate.SURVIVED]
    assert set(survivors) <= JUSTIFIED
    assert {outcome.fate for outcome in found.values()} & {Fate.KILLED, Fate.EQUIVALENT}


def test_whole_rows_are_not_refuted() -> None:
    """The checks that find mutants find nothing wrong with the rows as they are declared."""
    row = SCHEDULER.transition["accept"]

    assert first_refutation(SCHEDULER, Mutant("no fault", row)) is None


def test_reasons_are_about_mutants_that_exist() -> None:
    """Each fault of the declaration that is justified is one that the command would try."""
    faults = {mutant.fault for mutant in chain.from_iterable(ALL.values())}

    assert {fault for fault in JUSTIFIED if fault.partition(" ")[0] in ALL} <= faults


# --- Bends ----------------------------------------------------------------------------------------


def test_a_fault_is_named_once() -> None:
    """No two mutants of the declaration have one name."""
    faults = [mutant.fault for mutant in chain.from_iterable(ALL.values())]

    assert len(set(faults)) == len(faults)


@pytest.mark.parametrize("name", ALL)
def test_bends_are_trees_of_the_language(name: str) -> None:
    """Every mutant of a row is made of trees that the language accepts."""
    bent = [complete(mutant.row, SCHEDULER.state) for mutant in ALL[name]]

    check_trees(SCHEDULER, tuple(bent))


def test_every_node_of_a_guard_is_bent() -> None:
    """A comparison is turned, narrowed, widened, and each number and cell in it is changed."""
    held = SCHEDULER.transition["grow"].guard[2]
    texts = {text(bent) for bent in bends(held)}
    whole = "held[r] * BLOCK_SIZE < max(known[r], computed[r] + 1) + drafts[r] + LOOKAHEAD"

    assert text(held) == whole
    assert {
        whole.replace("<", ">="),
        whole.replace("<", "<="),
        f"{whole} - 1",
        whole.replace("*", "+"),
        whole.replace("drafts[r] +", "drafts[r] -"),
        whole.replace(") +", ") -"),
    } <= texts


def test_a_product_keeps_a_constant() -> None:
    """No bend makes a product of two things that can both change."""
    (guard,) = [part for part in SCHEDULER.transition["admit"].guard if "WATERMARK" in text(part)]
    products = [n for bent in bends(guard) for n in nodes(bent) if isinstance(n, Multiply)]

    assert products
    assert all(not isinstance(product.right, NumberCell) for product in products)


def test_numbers_are_bent_by_one() -> None:
    """A number that is written becomes one more and one less."""
    positive = SCHEDULER.transition["arrive"].guard[0]
    rights = [
        bent.right.value
        for bent in bends(positive)
        if isinstance(bent, Compare) and isinstance(bent.right, Literal)
    ]

    assert text(positive) == "prompt >= 1"
    assert sorted(rights) == [0, 1, 2]


# --- Meaning the same -----------------------------------------------------------------------------


def compared(declaration: Declaration, mutant: Mutant) -> tuple[Sat, Sat, Sat]:
    """Return whether a mutant can do more, less or something else."""
    name = mutant.row.name
    faulty = declaration.with_transition(mutant.row).complete_transitions[name]
    found = difference(declaration, declaration.complete_transitions[name], faulty)
    return found.more, found.less, found.other


def test_same_meaning_is_proved(lending: Declaration) -> None:
    """A conjunct that the invariants imply may be dropped: the row means the same without it."""
    take = lending.transition["take"]
    b = take.subject
    assert b is not None
    holds_none = NumberCell("held", (b,)) <= 0
    declared = lending.with_transition(evolve(take, guard=(*take.guard, holds_none)))
    mutant = find(declared, "take", "without guard held[b] <= 0")

    assert compared(declared, mutant) == (Sat.NO, Sat.NO, Sat.NO)
    assert fate(declared, mutant).fate is Fate.EQUIVALENT


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("without guard free[till] >= 1", (Sat.YES, Sat.NO, Sat.NO)),
        ("with guard free[till] >= 2 for free[till] >= 1", (Sat.NO, Sat.YES, Sat.NO)),
        ("with effect held[b] := held[b] + 2 for held[b] + 1", (Sat.NO, Sat.NO, Sat.YES)),
        ("from BUSY too", (Sat.YES, Sat.NO, Sat.NO)),
    ],
)
def test_difference_says_what_a_mutant_does(
    lending: Declaration, fault: str, expected: tuple[Sat, Sat, Sat]
) -> None:
    """A weaker guard can do more, a stronger one less, another effect something else."""
    assert compared(lending, find(lending, "take", fault)) == expected


# --- The score ------------------------------------------------------------------------------------

NARROW = "take with guard free[till] >= 2 for free[till] >= 1"
WIDE = "take without guard free[till] >= 1"


def silent(lending: Declaration) -> Declaration:
    """Return the lending of units without the claim that someone can always act."""
    both = Witness(
        "a_unit_goes_round",
        "One of two units is taken and given back.",
        {"SIZE": 2},
        (("take", 0), ("give", 0)),
    )
    return evolve(lending, progress=(), witnesses=(both,))


def score_of(declaration: Declaration, *reasons: Justification) -> tuple[set[str], list[str]]:
    """Return the survivors of `take`, and what is wrong with the reasons."""
    choice = Choice("take", (Side.SPEC,))
    work = plan(declaration, choice)
    outcomes = [outcome_of(work.mutants[task.label], task.call()) for task in work.tasks]
    score = scored(declaration, work, choice, outcomes, seconds=0.0, reasons=reasons)
    return {outcome.fault for outcome in score.of(Fate.SURVIVED)}, list(score.wrong)


def reason(fault: str) -> Justification:
    """Return a reason for one fault of `take`."""
    return Justification("because", ("take",), (fault.removeprefix("take "),))


def test_forgotten_sentence_is_listed(lending: Declaration) -> None:
    """That the last unit can be taken is said by no claim, so a till that keeps it survives."""
    declaration = silent(lending)
    mutant = find(declaration, "take", NARROW.removeprefix("take "))

    assert score_of(declaration)[0] == {NARROW}
    assert forgotten(declaration, mutant) == (
        "take can happen where free[till] >= 1, not only where free[till] >= 2"
    )


def test_justified_survivor_is_none(lending: Declaration) -> None:
    """A reason takes a fault out of the survivors, and is in order as long as it is needed."""
    survivors, wrong = score_of(silent(lending), reason(NARROW))

    assert survivors == set()
    assert wrong == []


def test_reason_that_is_not_needed_is_an_error(lending: Declaration) -> None:
    """A reason for a fault that is noticed, or that does not exist, is reported."""
    _, wrong = score_of(lending, reason(WIDE), reason("take without guard held[b] >= 7"))

    assert [line.partition(": ")[0] for line in wrong] == [WIDE, "take without guard held[b] >= 7"]
    assert wrong[0].startswith(f"{WIDE}: is killed by take keeps free_minimum")
    assert wrong[1].endswith("is no mutant; remove its reason.")


def test_reason_for_a_fault_that_was_not_chosen_is_left_alone(lending: Declaration) -> None:
    """A run over a part of the faults says nothing of the reasons for others."""
    survivors, wrong = score_of(lending, Justification("because", ("give",), ("to BUSY",)))

    assert wrong == []
    assert WIDE not in survivors


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([], Fate.SURVIVED),
        ([Verdict.REFUTED], Fate.KILLED),
        ([Verdict.PROVED], Fate.EQUIVALENT),
        ([Verdict.UNKNOWN], Fate.UNKNOWN),
    ],
)
def test_fate_is_what_the_obligations_say(results: list[Verdict], expected: Fate) -> None:
    """Refuted is killed, proved means the same, no answer is unknown, and silence survives."""
    said = [Result("claim", "S1", "take", Method.INDUCTION, verdict) for verdict in results]

    assert outcome_of(Mutant("f", SCHEDULER.transition["grow"]), said).fate is expected


def test_reasons_apply_to_survivors_alone() -> None:
    """A fault that is killed keeps its fate, whatever reason is given for it."""
    killed = Outcome("spec", "take", "take badly", Fate.KILLED, "a claim")

    found, wrong = justify([killed], [Justification("because", ("take",), ("badly",))])

    assert found == [killed]
    assert wrong == ["take badly: is killed by a claim; remove its reason."]


# --- The core -------------------------------------------------------------------------------------

TEXT = Module.on_disk("rows")


@pytest.mark.parametrize(
    ("row", "change", "expected"),
    [
        ("forget", "line 6: GtE becomes Gt", Fate.KILLED),
        ("forget", "line 8: 0 becomes 1", Fate.KILLED),
        ("admit", "line 14: GtE becomes Gt", Fate.KILLED),
    ],
)
def test_fault_in_a_function_is_noticed(row: str, change: str, expected: Fate) -> None:
    """The translation check refutes a function that does what its row does not say."""
    work = plan(SCHEDULER, Choice(f"rows.{row} {change}", (Side.CODE,)))
    (task,) = [task for task in work.tasks if task.label == f"rows.{row} {change}"]

    assert outcome_of(work.mutants[task.label], task.call()).fate is expected


def test_other_way_to_write_a_function_is_equivalent() -> None:
    """A change that the translation check proves right is no fault, and needs no reason."""
    old, new = "pool.free -= 1", "pool.free = pool.free - 1"
    start = TEXT.text.index("def grow")
    rewritten = Module("rows", TEXT.text[:start] + TEXT.text[start:].replace(old, new, 1))
    mutant = CodeMutant(
        "rows.grow rewritten", "rows", "grow", lambda: rewritten.functions()["grow"]
    )

    outcome = outcome_of(mutant, try_code(SCHEDULER, mutant, TEXT.names()))

    assert outcome.fate is Fate.EQUIVALENT


def test_every_function_of_a_row_has_mutants() -> None:
    """No function of the core is left out, and each fault has a name of its own."""
    found = list(code_mutants(SCHEDULER, TEXT))
    faults = [mutant.fault for mutant in found]

    assert {mutant.row for mutant in found} == set(SCHEDULER.transition)
    assert len(set(faults)) == len(faults)


@pytest.mark.parametrize(
    ("pattern", "sides", "found"),
    [
        ("grow", tuple(Side), ("grow from ABSENT too", "rows.grow line 1: x")),
        ("rows.grow", tuple(Side), ("rows.grow line 1: x",)),
        ("", (Side.SPEC,), ("grow from ABSENT too", "grow_for_load from ABSENT too")),
        ("*ABSENT*", tuple(Side), ("grow from ABSENT too", "grow_for_load from ABSENT too")),
    ],
)
def test_choice_is_by_row_or_by_part(
    pattern: str, sides: tuple[Side, ...], found: tuple[str, ...]
) -> None:
    """A pattern is the name of a row, or is looked for in what a fault is called."""
    faults = ("grow from ABSENT too", "grow_for_load from ABSENT too", "rows.grow line 1: x")
    choice = Choice(pattern, sides, frozenset({"grow", "grow_for_load"}))

    assert tuple(fault for fault in faults if choice.finds(fault)) == found


def test_tasks_are_named_by_their_faults() -> None:
    """What comes back from another process is told apart by the name of the fault."""
    work = plan(SCHEDULER, Choice("forget"))

    assert [task.label for task in work.tasks] == list(work.mutants)
    assert all(isinstance(task, Task) for task in work.tasks)
