"""The language refuses mistakes where they are written: file, line, and what to write instead.

Each case below makes one mistake in a miniature declaration; the line that the message must name
is the one marked `# here`.
"""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import (
    Assignment,
    Choice,
    Constant,
    Formula,
    Number,
    NumberParameter,
    all_of,
    before,
    every,
    no,
    total,
)
from kvproof.spec.location import DeclarationError
from kvproof.spec.rows import (
    Assumption,
    Enumeration,
    Invariant,
    Measure,
    Progress,
    Role,
    Transition,
    Variable,
    Witness,
)

ROOM = Constant("ROOM", "jobs that fit")
job = Role("job", "a piece of work", plural="jobs")
tool = Role("tool", "something that jobs use", plural="tools")
shop = Role("shop", "where jobs are done", single=True)
Phase = Enumeration("Phase", "where a job is", (("IDLE", "at rest"), ("BUSY", "at work")))
Colour = Enumeration("Colour", "no state at all", (("RED", "red"),))
IDLE, BUSY = Phase["IDLE"], Phase["BUSY"]

phase = Variable[Choice]("phase", (job,), "where the job is", enumeration=Phase)
load = Variable[Number]("load", (job,), "what the job weighs", minimum=0)
lit = Variable[Formula]("lit", (shop,), "the light is on", flag=True)
busy = Variable[Number]("busy", (shop,), "jobs at work")
kept = Variable[Number]("kept", (job,), "tools that the job has")
tools = Variable[Number]("tools", (job, tool), "the tools of a job", length=kept)
spot = Variable[Number]("spot", (job, tool), "where the tool was put", ghost=True)
racks = Variable[Number]("racks", (job, tool), "tools in order", length=kept, place=spot)
history = Variable[Number]("history", (shop,), "jobs ever started", ghost=True)

j, other = job.index("j"), job.index("other")
t, s = tool.index("t"), shop.index("s")
amount = NumberParameter("amount", "what it weighs")

START = Transition(
    "start",
    "A job begins.",
    "none",
    (j, amount),
    subject=j,
    source=(IDLE,),
    target=BUSY,
    guard=(amount >= 1, busy[shop] < ROOM),
    effect=(load[j].becomes(amount), busy[shop].becomes(busy[shop] + 1)),
)
STOP = Transition(
    "stop",
    "A job ends.",
    "none",
    (j,),
    subject=j,
    source=(BUSY,),
    target=IDLE,
    guard=(load[j] >= 1,),
    effect=(load[j].becomes(0), busy[shop].becomes(busy[shop] - 1)),
)
COUNTED = Invariant(
    "counted", "Busy jobs are counted.", busy[shop] == total(j, phase[j] == BUSY), "L1"
)
FALLS = Measure("falls", "Busy jobs.", busy[shop], lowered_by=("stop",), raised_by=("start",))
GOES_ON = Progress("goes_on", "A busy job can stop.", (j,), phase[j] == BUSY, rows=("stop",))
RUN = Witness("run", "A job begins and ends.", {"ROOM": 1}, (("start", 0, 1), ("stop", 0)))
MINIATURE: dict[str, Any] = {
    "constants": (ROOM,),
    "roles": (job, tool, shop),
    "variables": (phase, load, busy),
    "transitions": (START, STOP),
    "invariants": (COUNTED,),
    "measures": (FALLS,),
    "progress": (GOES_ON,),
    "witnesses": (RUN,),
}


def miniature(**changed: object) -> Declaration:
    """Return the miniature declaration with some of its parts replaced."""
    return Declaration("miniature", enumeration=Phase, state=phase, **(MINIATURE | changed))


def with_variable(variable: Any, *more: object, **changed: object) -> Declaration:
    """Return the miniature with one more variable, which an invariant reads."""
    cell = variable[tuple(r if r.single else r.index("x") for r in variable.of)]
    reads = Invariant("reads", "It is read.", cell if variable.flag else cell == 0, "N1")
    return miniature(
        variables=(*MINIATURE["variables"], variable, *more),
        invariants=(COUNTED, reads),
        **changed,
    )


def place(case: Callable[[], object]) -> str:
    """Return `file:line` of the line of a case that is marked."""
    lines, first = inspect.getsourcelines(case)
    (offset,) = (number for number, line in enumerate(lines) if line.rstrip().endswith("# here"))
    return f"test_language.py:{first + offset}"


# --- Mistakes in a tree ---------------------------------------------------------------------------


def truth_for_a_number() -> object:
    """Assign a truth value to a number."""
    return load[j].becomes(value=True)  # here


def number_for_a_formula() -> object:
    """Put a number into a conjunction."""
    return all_of(load[j])  # type: ignore[arg-type]  # here


def text_for_a_number() -> object:
    """Compare a number with a string."""
    return load[j] < "three"  # type: ignore[operator]  # here


def member_of_another_enumeration() -> object:
    """Compare a state with a member of another enumeration."""
    return phase[j] == Colour["RED"]  # here


def unknown_state() -> object:
    """Name a state that the enumeration does not have."""
    return Phase["BUSSY"]  # here


def python_and() -> object:
    """Join formulas by `and`."""
    return load[j] >= 1 and phase[j] == BUSY  # here


def python_or() -> object:
    """Join formulas by `or`."""
    return lit[shop] or phase[j] == BUSY  # type: ignore[unreachable]  # here


def python_not() -> object:
    """Negate a formula by `not`."""
    return not lit[shop]  # here


def python_in() -> object:
    """Look for a state by `in`."""
    return phase[j] in (IDLE, BUSY)  # here


def python_if() -> object:
    """Let a formula decide an `if`."""
    return 1 if lit[shop] else 0  # here


def chained_comparison() -> object:
    """Chain two comparisons."""
    return 1 <= load[j] <= 3  # here


def product_of_two_variables() -> object:
    """Multiply two numbers that both change."""
    return load[j] * busy[shop]  # here


def wrong_role() -> object:
    """Index a variable of jobs by a tool."""
    return load[t]  # here


def too_few_indices() -> object:
    """Index a pair by one instance."""
    return tools[j]  # here


def every_without_an_assignment() -> object:
    """Give an equation to `every`."""
    return every(j, load[j] == 0)  # type: ignore[arg-type]  # here


def place_in_a_table_without_places() -> object:
    """Ask where an entry stands in a table that keeps no places."""
    return tools.stands_at(j, 0, t)  # here


def place_of_a_wrong_role() -> object:
    """Ask for an entry in a table of its own role."""
    return racks.stands_at(t, 0, t)  # here


def place_that_is_no_number() -> object:
    """Ask for a place that is no number."""
    return racks.stands_at(j, "first", t)  # type: ignore[arg-type]  # here


TREES = (
    (truth_for_a_number, "expected a number, saw True of type bool; write a number"),
    (number_for_a_formula, "expected a formula, saw a number; compare it"),
    (text_for_a_number, "saw 'three' of type str"),
    (member_of_another_enumeration, "expected a member of Phase, saw a member of Colour"),
    (unknown_state, "Phase has no member 'BUSSY'; it has IDLE, BUSY"),
    (python_and, "Write all_of(...)"),
    (python_or, "any_of(...)"),
    (python_not, "no(...)"),
    (python_in, "any_of(...)"),
    (python_if, "choose(...)"),
    (chained_comparison, "chained comparisons"),
    (product_of_two_variables, "Keep the product in a variable of its own"),
    (wrong_role, "load is indexed by ['job'], saw ['tool']; give one of each"),
    (too_few_indices, "tools is indexed by ['job', 'tool'], saw ['job']"),
    (every_without_an_assignment, "write every(index, ..., cell.becomes(value))"),
    (place_in_a_table_without_places, "tools has no places; give it place=, a ghost pair"),
    (place_of_a_wrong_role, "spot is indexed by ['job', 'tool'], saw ['tool', 'tool']"),
    (place_that_is_no_number, "expected a number, saw 'first' of type str"),
)


# --- Mistakes in a transition ---------------------------------------------------------------------


def number_as_a_guard() -> object:
    """Put a number into a guard."""
    row = Transition("start", "", "", (j,), guard=(load[j],))  # type: ignore[arg-type]  # here
    return miniature(transitions=(row, STOP))


def comparison_of_instances() -> object:
    """Compare two instances, which Python answers at once."""
    row = Transition("start", "", "", (j, other), guard=(j != other,))  # type: ignore[arg-type]  # here
    return miniature(transitions=(row, STOP))


def truth_within_a_guard() -> object:
    """Put a part into a guard that is always true."""
    row = Transition("start", "", "", (j,), guard=(all_of(True, load[j] == 0),))  # here
    return miniature(transitions=(row, STOP))


def equation_as_an_effect() -> object:
    """Write an equation instead of an assignment."""
    row = Transition("start", "", "", (j,), effect=(load[j] == 0,))  # type: ignore[arg-type]  # here
    return miniature(transitions=(row, STOP))


def assigned_twice() -> object:
    """Assign a variable twice."""
    row = Transition(  # here
        "start", "", "", (j,), effect=(load[j].becomes(1), load[j].becomes(load[j] + 1))
    )
    return miniature(transitions=(row, STOP))


def assigned_parameter() -> object:
    """Assign a parameter."""
    row = Transition("start", "", "", (amount,), effect=(amount.becomes(1),))  # here
    return miniature(transitions=(row, STOP))


def state_of_another_enumeration() -> object:
    """Start from something that is no state."""
    row = Transition("start", "", "", (j,), subject=j, source=(Colour["RED"],))  # here
    return miniature(transitions=(row, STOP))


def target_without_a_subject() -> object:
    """Give a target, and nobody who moves there."""
    row = Transition("start", "", "", (j,), target=BUSY, effect=(load[j].becomes(0),))  # here
    return miniature(transitions=(row, STOP))


def subject_without_a_state() -> object:
    """Move an instance of a role that has no state."""
    row = Transition("start", "", "", (t,), subject=t, source=(IDLE,))  # here
    return miniature(transitions=(row, STOP))


def unused_parameter() -> object:
    """Leave a parameter unused."""
    row = Transition("start", "", "", (j, amount), effect=(load[j].becomes(1),))  # here
    return miniature(transitions=(row, STOP))


def unused_instance() -> object:
    """Leave an instance among the parameters unused."""
    row = Transition("start", "", "", (j, other), effect=(load[j].becomes(1),))  # here
    return miniature(transitions=(row, STOP))


def missing_parameter() -> object:
    """Use a value that is not among the parameters."""
    row = Transition("start", "", "", (j,), effect=(load[j].becomes(amount),))  # here
    return miniature(transitions=(row, STOP))


def unbound_index() -> object:
    """Use an instance that nothing binds."""
    row = Transition("start", "", "", (j,), effect=(load[j].becomes(load[other]),))  # here
    return miniature(transitions=(row, STOP))


def role_instead_of_an_instance() -> object:
    """Index a variable of many by the role itself."""
    row = Transition("start", "", "", effect=(load[job].becomes(1),))  # here
    return miniature(transitions=(row, STOP))


def name_for_the_only_instance() -> object:
    """Give a name to the only instance of a role."""
    row = Transition("start", "", "", (s,), effect=(busy[s].becomes(1),))  # here
    return miniature(transitions=(row, STOP))


def every_index_missing_from_its_cell() -> object:
    """Let `every` run over an index that the assigned cell does not have."""
    row = Transition(  # here
        "start", "", "", effect=(every(j, busy[shop].becomes(busy[shop] + load[j])),)
    )
    return miniature(transitions=(row, STOP))


def before_in_a_row() -> object:
    """Speak in a row of the state before it."""
    row = Transition("start", "", "", (j,), effect=(load[j].becomes(before(load[j])),))  # here
    return miniature(transitions=(row, STOP))


def ghost_in_a_guard() -> object:
    """Read a ghost in a guard."""
    row = Transition("start", "", "", guard=(history[shop] == 0,))  # here
    return with_variable(history, transitions=(row, STOP))


def ghost_in_a_stored_value() -> object:
    """Compute a stored variable from a ghost."""
    row = Transition("start", "", "", effect=(busy[shop].becomes(history[shop]),))  # here
    return with_variable(history, transitions=(row, STOP))


def table_without_its_length() -> object:
    """Change a table and not its length."""
    row = Transition("start", "", "", (j, t), effect=(tools[j, t].becomes(1),))  # here
    return with_variable(tools, kept, transitions=(row, STOP))


def place_read_in_a_guard() -> object:
    """Read a place itself, instead of asking what stands there."""
    row = Transition("start", "", "", (j, t), guard=(spot[j, t] == 0,))  # here
    return with_variable(racks, kept, spot, transitions=(row, STOP))


def ghost_for_a_place() -> object:
    """Ask for an entry at a place that only a ghost knows."""
    row = Transition("start", "", "", (j, t), guard=(racks.stands_at(j, spot[j, t], t),))  # here
    return with_variable(racks, kept, spot, transitions=(row, STOP))


def place_in_an_unbound_table() -> object:
    """Ask for an entry in the table of an instance that nothing binds."""
    row = Transition("start", "", "", (t,), guard=(racks.stands_at(other, 0, t),))  # here
    return with_variable(racks, kept, spot, transitions=(row, STOP))


def entry_without_its_place() -> object:
    """Put an entry into a table and do not note its place."""
    row = Transition("start", "", "", (j, t), effect=(more_racks(), more_kept()))  # here
    return with_variable(racks, kept, spot, transitions=(row, STOP))


def entry_with_a_wrong_place() -> object:
    """Note another place than the end of the list."""
    noted = spot[j, t].becomes(kept[j] + 1)
    row = Transition("start", "", "", (j, t), effect=(more_racks(), more_kept(), noted))  # here
    return with_variable(racks, kept, spot, transitions=(row, STOP))


def entry_taken_from_the_middle() -> object:
    """Take one entry out of a table, so that those behind it move up."""
    fewer = racks[j, t].becomes(racks[j, t] - 1)
    row = Transition("start", "", "", (j, t), effect=(fewer, kept[j].becomes(kept[j] - 1)))  # here
    return with_variable(racks, kept, spot, transitions=(row, STOP))


def place_without_an_entry() -> object:
    """Note a place where nothing is put."""
    row = Transition("start", "", "", (j, t), effect=(spot[j, t].becomes(0),))  # here
    return with_variable(racks, kept, spot, transitions=(row, STOP))


def unknown_invariant_to_break() -> object:
    """Break an invariant that does not exist."""
    row = Transition("start", "", "", effect=(busy[shop].becomes(1),), breaks=("counting",))  # here
    return miniature(transitions=(row, STOP), witnesses=(evolve(RUN, steps=(("start",),)),))


def undeclared_variable() -> object:
    """Read a variable that is not declared."""
    row = Transition("start", "", "", guard=(lit[shop],))  # here
    return miniature(transitions=(row, STOP))


def undeclared_constant() -> object:
    """Read a constant that is not declared."""
    row = Transition("start", "", "", guard=(busy[shop] < Constant("SIZE", ""),))  # here
    return miniature(transitions=(row, STOP))


def unknown_row_to_undo() -> object:
    """Undo a row that does not exist."""
    row = Transition("start", "", "", effect=(busy[shop].becomes(1),), undoes="begin")  # here
    return miniature(transitions=(row, STOP))


TRANSITIONS = (
    (number_as_a_guard, "expected a formula, saw NumberCell; compare it with something"),
    (comparison_of_instances, "two instances cannot be compared; say what is true of their"),
    (truth_within_a_guard, "true or false whatever the state is; say what is true of variables"),
    (equation_as_an_effect, "an effect is an assignment"),
    (assigned_twice, "effects are simultaneous, so assign each variable once"),
    (assigned_parameter, "only a variable's cell can be assigned; write variable[index]"),
    (state_of_another_enumeration, "RED is no state of a job; use Phase"),
    (target_without_a_subject, "a target state needs a subject; name the job that moves"),
    (subject_without_a_state, "a tool has no state; the subject must be a job"),
    (unused_parameter, "the parameter 'amount' is not used; remove it"),
    (unused_instance, "the parameter 'other' is not used; remove it"),
    (missing_parameter, "'amount' is used but is not among the parameters; add it"),
    (unbound_index, "the job 'other' is neither a parameter nor under every(...); bind it"),
    (role_instead_of_an_instance, "there are many jobs; name one: x = job.index('x')"),
    (name_for_the_only_instance, "there is one shop; write busy[shop]"),
    (every_index_missing_from_its_cell, "assigns busy many times over; index it by 'j'"),
    (before_in_a_row, "before(...) belongs into invariants"),
    (ghost_in_a_guard, "history is for proofs alone and cannot be read here"),
    (ghost_in_a_stored_value, "history is for proofs alone and cannot be read here"),
    (table_without_its_length, "tools changes but its length kept does not; assign both"),
    (place_read_in_a_guard, "spot is for proofs alone and cannot be read here"),
    (ghost_for_a_place, "spot is for proofs alone and cannot be read here"),
    (place_in_an_unbound_table, "the job 'other' is neither a parameter nor under every(...)"),
    (entry_without_its_place, "racks gets an entry; note its place: spot[j, t] := kept[j]"),
    (entry_with_a_wrong_place, "racks gets an entry; note its place: spot[j, t] := kept[j]"),
    (entry_taken_from_the_middle, "put one entry at its end, or take all of them out"),
    (place_without_an_entry, "spot is noted, but nothing is put into racks"),
    (unknown_invariant_to_break, "breaks 'counting', which is no invariant; name one"),
    (undeclared_variable, "'lit' is not among the declared variables; add it"),
    (undeclared_constant, "'SIZE' is not among the declared constants; add it"),
    (unknown_row_to_undo, "undoes 'begin', which is no transition; name one"),
)


def more_racks() -> Assignment:
    """Put a tool into the rack of a job."""
    return racks[j, t].becomes(racks[j, t] + 1)


def more_kept() -> Assignment:
    """Count it."""
    return kept[j].becomes(kept[j] + 1)


# --- Mistakes in other rows -----------------------------------------------------------------------


def duplicate_transition() -> object:
    """Give one name to two transitions."""
    row = Transition("start", "", "", (j,), effect=(load[j].becomes(1),))  # here
    return miniature(transitions=(START, row, STOP))


def duplicate_invariant() -> object:
    """Give the name of a declared bound to an invariant."""
    row = Invariant("load_minimum", "", load[j] >= 0, "N1")  # here
    return miniature(invariants=(COUNTED, row))


def unread_variable() -> object:
    """Declare a variable that nothing reads."""
    row = Variable[Number]("spare", (job,), "nothing")  # here
    return miniature(variables=(phase, load, busy, row))


def unchanged_variable() -> object:
    """Declare a variable that nothing changes."""
    row = Variable[Number]("spare", (job,), "nothing")  # here
    return with_variable(row)


def pair_without_a_length() -> object:
    """Store a pair without the variable that holds its length."""
    row = Variable[Number]("pairs", (job, tool), "nothing")  # here
    return with_variable(row)


def place_that_is_stored() -> object:
    """Keep the places of a table in a variable that is no ghost."""
    row = Variable[Number]("racks", (job, tool), "", length=kept, place=tools)  # here
    return with_variable(row, kept, spot)


def invariant_about_nothing() -> object:
    """State an invariant that mentions no variable."""
    row = Invariant("vacuous", "", ROOM >= 1, "N1")  # here
    return miniature(invariants=(COUNTED, row))


def invariant_about_the_role() -> object:
    """State an invariant of the role instead of each instance."""
    row = Invariant("vacuous", "", load[job] >= 0, "N1")  # here
    return miniature(invariants=(COUNTED, row))


def invariant_with_a_parameter() -> object:
    """Read in an invariant what only a transition is given."""
    row = Invariant("bounded", "", load[j] <= amount, "N1")  # here
    return miniature(invariants=(COUNTED, row))


def assumption_about_a_variable() -> object:
    """Assume something of what changes."""
    row = Assumption("light", "", busy[shop] <= ROOM)  # here
    return miniature(assumptions=(row,))


def measure_that_nothing_lowers() -> object:
    """Name no row that lowers a measure."""
    row = Measure("stuck", "", busy[shop], lowered_by=())  # here
    return miniature(measures=(row,))


def measure_that_its_row_leaves_alone() -> object:
    """Name a row that does not change what the measure reads."""
    row = Measure("stuck", "", kept_total(), lowered_by=("stop",))  # here
    return with_variable(kept, measures=(row,), transitions=(START, STOP, KEEP), witnesses=(LONG,))


def measure_of_an_unknown_row() -> object:
    """Name a row that does not exist in a measure."""
    row = Measure("stuck", "", busy[shop], lowered_by=("halt",))  # here
    return miniature(measures=(row,))


def measure_of_one_instance() -> object:
    """Measure an instance that nothing binds."""
    row = Measure("one", "", load[j], lowered_by=("stop",))  # here
    return miniature(measures=(row,))


def measure_that_is_a_formula() -> object:
    """Measure a formula."""
    row = Measure("one", "", phase[j] == BUSY, ("stop",))  # type: ignore[arg-type]  # here
    return miniature(measures=(row,))


def progress_of_nobody() -> object:
    """Claim progress without a row that makes it."""
    row = Progress("none", "", (j,), phase[j] == BUSY, rows=())  # here
    return miniature(progress=(row,))


def witness_of_an_unknown_row() -> object:
    """Fire a row in a witness that does not exist."""
    row = Witness("bad", "", {"ROOM": 1}, (("begin", 0),))  # here
    return miniature(witnesses=(RUN, row))


def witness_with_too_few_arguments() -> object:
    """Leave out an argument in a witness."""
    row = Witness("bad", "", {"ROOM": 1}, (("start", 0),))  # here
    return miniature(witnesses=(RUN, row))


def witness_without_a_constant() -> object:
    """Give a constant no value in a witness."""
    row = Witness("bad", "", {}, (("start", 0, 1),))  # here
    return miniature(witnesses=(RUN, row))


def transition_without_a_witness() -> object:
    """Fire a row in no witness."""
    row = Transition("pause", "", "", effect=(busy[shop].becomes(0),))  # here
    return miniature(transitions=(START, STOP, row))


def kept_total() -> Number:
    """Return the tools of all jobs."""
    return total(other, kept[other])


KEEP = Transition("keep", "A job takes a tool.", "", (j,), effect=(kept[j].becomes(kept[j] + 1),))
LONG = evolve(RUN, steps=(*RUN.steps, ("keep", 0)))

ROWS = (
    (duplicate_transition, "the name is taken at test_language.py:"),
    (duplicate_invariant, "the name is taken at test_language.py:"),
    (unread_variable, "no guard, effect or invariant reads it; remove it or say its law"),
    (unchanged_variable, "no transition changes it; make it a constant"),
    (pair_without_a_length, "a stored pair is a table and needs length="),
    (place_that_is_stored, "place= is tools; it must be a ghost of (job, tool)"),
    (invariant_about_nothing, "mentions no variable; it can be deleted or is an assumption"),
    (invariant_about_the_role, "there are many jobs; name one"),
    (invariant_with_a_parameter, "'amount' is given to a transition and means nothing here"),
    (assumption_about_a_variable, "busy changes; an assumption is about constants only"),
    (measure_that_nothing_lowers, "no row lowers it; name one in lowered_by, or remove"),
    (measure_that_its_row_leaves_alone, "stop changes none of kept"),
    (measure_of_an_unknown_row, "'halt' is no transition; the rows are start, stop"),
    (measure_of_one_instance, "the job 'j' is under no total; bind it"),
    (measure_that_is_a_formula, "expected a number, saw Compare; write a number, or count_if"),
    (progress_of_nobody, "no row is named, so none is enabled; name those that can go on"),
    (witness_of_an_unknown_row, "'begin' is no transition; the rows are start, stop"),
    (witness_with_too_few_arguments, "start takes (j, amount), saw 1 arguments: [0]"),
    (witness_without_a_constant, "'ROOM' needs a value"),
    (transition_without_a_witness, "no witness fires it; add it to a run"),
)


# --- The tests ------------------------------------------------------------------------------------


def test_the_miniature_is_accepted() -> None:
    """Without a mistake the miniature declaration is built."""
    assert miniature().transition["start"] is START


@pytest.mark.parametrize(
    ("case", "advice"),
    [*TREES, *TRANSITIONS, *ROWS],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_mistake_is_refused_with_its_line_and_the_fix(
    case: Callable[[], object], advice: str
) -> None:
    """The message starts with the file and line of the mistake and says what to write."""
    with pytest.raises(DeclarationError) as caught:
        case()

    assert str(caught.value).startswith(f"{place(case)}: ")
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("case", "row"),
    [
        (assigned_twice, "transition 'start'"),
        (unread_variable, "variable 'spare'"),
        (measure_that_nothing_lowers, "measure 'stuck'"),
        (witness_of_an_unknown_row, "witness 'bad'"),
    ],
)
def test_a_mistake_in_a_row_names_the_row(case: Callable[[], object], row: str) -> None:
    """The message says which row is meant, by its kind and its name."""
    with pytest.raises(DeclarationError) as caught:
        case()

    assert f": {row}: " in str(caught.value)


def test_both_lines_of_a_double_assignment_are_named() -> None:
    """A variable that is assigned twice is refused with the lines of both assignments."""
    with pytest.raises(DeclarationError) as caught:
        assigned_twice()

    assert str(caught.value).count("test_language.py:") == 3


def test_a_formula_written_as_the_message_says_is_accepted() -> None:
    """Each kind of advice, followed, gives a tree."""
    formula = all_of(no(lit[shop]), load[j] >= 1, load[j] <= 3, phase[j].is_in(IDLE, BUSY))

    assert isinstance(formula, Formula)


def test_a_place_may_be_asked_for_where_it_may_not_be_read() -> None:
    """A guard that asks what stands at a place reads the list, and not the ghost behind it."""
    noted = spot[j, t].becomes(kept[j])
    row = evolve(
        START,
        parameters=(j, t, amount),
        guard=(racks.stands_at(j, amount, t),),
        effect=(*START.effect, more_racks(), more_kept(), noted),
    )
    run = evolve(RUN, steps=(("start", 0, 0, 1), ("stop", 0)))

    declared = with_variable(racks, kept, spot, transitions=(row, STOP), witnesses=(run,))

    assert declared.transition["start"] is row


@pytest.mark.parametrize("name", ["counted", "load_minimum"])
def test_a_row_may_break_any_invariant_that_there_is(name: str) -> None:
    """A declared invariant can be broken, and so can the declared bound of a variable."""
    row = evolve(START, breaks=(name,))

    assert miniature(transitions=(row, STOP)).transition["start"].breaks == (name,)
