"""Induction: what the rows keep, and that a faulty row is refuted with the state it breaks."""

import pytest
from attrs import evolve

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import Constant, Formula, Number, choose, count_if, no, total
from kvproof.spec.rows import Invariant, Role, Transition, Variable
from kvproof.spec.scheduler import SCHEDULER
from kvproof.verify.induction import (
    check_consequences,
    check_initial,
    check_row,
    steps_of,
    touches,
)
from kvproof.verify.query import Query, Sat
from kvproof.verify.setting import Setting, crowds
from kvproof.verify.verdict import Method, Result, Verdict

ROWS = list(SCHEDULER.complete_transitions)


def failures(results: list[Result]) -> list[str]:
    """Return the names of the results that are not proved."""
    return [result.name for result in results if result.verdict is not Verdict.PROVED]


def failures_of(changed: Transition, declaration: Declaration) -> list[str]:
    """Return what is no longer proved of a row that has been changed."""
    mutant = declaration.with_transition(changed)
    return failures(check_row(mutant, mutant.complete_transitions[changed.name]))


def without_guard(declaration: Declaration, name: str, index: int) -> Transition:
    """Return a row without one conjunct of its guard."""
    row = declaration.transition[name]
    return evolve(row, guard=row.guard[:index] + row.guard[index + 1 :])


def without_effect(declaration: Declaration, name: str, index: int) -> Transition:
    """Return a row without one of its assignments."""
    row = declaration.transition[name]
    return evolve(row, effect=row.effect[:index] + row.effect[index + 1 :])


@pytest.mark.parametrize("name", ROWS)
def test_each_row_of_the_scheduler_keeps_every_invariant(name: str) -> None:
    """Every row can happen and keeps every invariant, for any number of requests and blocks."""
    results = check_row(SCHEDULER, SCHEDULER.complete_transitions[name])

    assert failures(results) == []
    assert len(results) > 40


def test_the_scheduler_starts_with_every_invariant() -> None:
    """The initial state satisfies every invariant, and the consequences follow from the others."""
    assert failures(check_initial(SCHEDULER)) == []
    assert failures(check_consequences(SCHEDULER)) == []


@pytest.mark.parametrize(
    ("row", "guard", "broken"),
    [
        ("arrive", 2, "arrive keeps tokens_in_order"),
        ("arrive", 3, "arrive keeps fits_an_empty_pool"),
        ("admit", 1, "admit keeps hits_counted_on_are_shared"),
        ("admit", 2, "admit keeps preempting_step_admits_nobody"),
        ("admit", 3, "admit keeps running_is_counted"),
        ("admit", 5, "admit keeps admission_fits"),
        ("admit_chunk", 5, "admit_chunk keeps admission_starts"),
        ("preempt", 3, "preempt keeps preemption_pays"),
        ("preempt", 10, "preempt keeps preemption_pays_at_once"),
        ("propose", 1, "propose keeps tokens_in_order"),
        ("accept", 0, "accept keeps table_is_no_longer_than_needed"),
        ("accept", 3, "accept keeps table_covers_tokens"),
        ("accept_one", 0, "accept_one keeps sample_is_wanted"),
        ("accept_one", 3, "accept_one keeps decoding_has_computed"),
        ("grow", 0, "grow keeps free_is_counted"),
        ("share", 1, "share keeps shared_is_published"),
        ("share", 5, "share keeps published_is_known"),
        ("share", 6, "share keeps credit_minimum"),
        ("publish", 2, "publish keeps published_is_known"),
        ("publish", 3, "publish keeps published_is_written"),
        ("publish", 4, "publish keeps published_is_known"),
        ("publish_early", 3, "publish_early keeps published_is_known"),
        ("forget", 0, "forget keeps shared_is_published"),
        ("park_session", 0, "park_session keeps parks_for_a_reason"),
        ("encode", 1, "encode keeps used_slots_are_counted"),
        ("encode", 3, "encode keeps encoder_free_minimum"),
        ("unencode", 0, "unencode keeps encoder_budget_is_of_a_step"),
        ("reuse", 1, "reuse keeps items_are_unique"),
        ("release", 1, "release keeps released_is_behind"),
        ("release", 2, "release keeps released_is_behind"),
        ("evict", 1, "evict keeps used_entries_exist"),
        ("drain", 0, "drain keeps fence_table_minimum"),
        ("drain", 1, "drain keeps touched_is_protected"),
        ("schedule", 3, "schedule keeps budget_left_minimum"),
        ("schedule", 5, "schedule keeps table_covers_tokens"),
        ("schedule", 6, "schedule keeps deferring_step_has_no_prefill"),
        ("schedule", 7, "schedule keeps scheduled_is_wanted"),
        ("come_back", 0, "come_back keeps frames_in_flight"),
        ("process", 1, "process keeps sample_is_in_flight"),
        ("withdraw", 1, "withdraw keeps closed_step_is_empty"),
        ("dispatch", 1, "dispatch keeps hits_counted_on_are_shared"),
    ],
)
def test_a_dropped_guard_breaks_an_invariant(row: str, guard: int, broken: str) -> None:
    """Without a conjunct of its guard, a row breaks the invariant that the conjunct protects."""
    assert broken in failures_of(without_guard(SCHEDULER, row, guard), SCHEDULER)


@pytest.mark.parametrize(
    ("row", "effect", "broken"),
    [
        ("grow", 2, "grow keeps published_is_written"),
        ("grow", 3, "grow keeps conservation"),
        ("share", 2, "share keeps referenced_is_counted"),
        ("share", 5, "share keeps entries_are_unique"),
        ("accept", 2, "accept keeps drafts_are_tried_once"),
        ("dispatch", 3, "dispatch keeps tokens_in_order"),
        ("park_session", 12, "park_session keeps stale_is_in_flight"),
        ("release", 1, "release keeps idle_slots_are_counted"),
        ("park_session", 7, "park_session keeps released_is_behind"),
        ("drain", 2, "drain keeps references_are_exact"),
        ("preempt", 2, "preempt keeps fenced_is_counted"),
        ("dispatch", 5, "dispatch keeps closed_step_is_empty"),
        ("unschedule", 0, "unschedule keeps budget_is_spent_once"),
    ],
)
def test_a_dropped_effect_breaks_an_invariant(row: str, effect: int, broken: str) -> None:
    """Without one of its assignments, a row breaks the invariant that needs it."""
    assert broken in failures_of(without_effect(SCHEDULER, row, effect), SCHEDULER)


@pytest.mark.parametrize(
    ("row", "invariant"),
    [(row.name, name) for row in SCHEDULER.transitions for name in row.breaks],
)
def test_a_row_of_the_reference_differs_where_it_says(row: str, invariant: str) -> None:
    """A row that lists an invariant breaks it; one that does not list it is refuted by it."""
    declared = SCHEDULER.transition[row]
    others = tuple(name for name in declared.breaks if name != invariant)
    results = check_row(SCHEDULER, SCHEDULER.complete_transitions[row])
    broken = {r.name: r.verdict for r in results if r.method is Method.DIFFERENCE}

    assert broken == {f"{row} breaks {name}": Verdict.PROVED for name in declared.breaks}
    assert failures_of(evolve(declared, breaks=others), SCHEDULER) == [f"{row} keeps {invariant}"]


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        ("publish_early", "published_is_known"),
        ("arrive", "fits_an_empty_pool"),
        ("retire", "references_are_exact"),
    ],
)
def test_a_row_may_not_list_what_it_keeps(row: str, kept: str) -> None:
    """An invariant that a row keeps, or does not touch at all, is no difference to be listed."""
    declared = SCHEDULER.transition[row]
    listing = SCHEDULER.with_transition(evolve(declared, breaks=(*declared.breaks, kept)))

    results = check_row(listing, listing.complete_transitions[row])

    (refuted,) = [result for result in results if result.verdict is not Verdict.PROVED]
    assert (refuted.name, refuted.method) == (f"{row} breaks {kept}", Method.DIFFERENCE)
    assert refuted.verdict is Verdict.REFUTED
    assert refuted.counterexample is not None
    assert "do not list it in breaks" in refuted.counterexample.explanation


def test_a_refuted_row_shows_the_state_it_breaks(lending: Declaration) -> None:
    """A row that gives back two units for one is refuted with the cells before and after it."""
    free = lending.variable["free"]
    row = lending.transition["give"]
    cell = row.effect[1].cell
    assert isinstance(cell, Number)
    bent = evolve(row, effect=(row.effect[0], cell.becomes(cell + 2)))
    mutant = lending.with_transition(bent)

    results = check_row(mutant, mutant.complete_transitions["give"])

    (result,) = [item for item in results if item.verdict is Verdict.REFUTED]
    assert result.name == "give keeps conserved"
    assert result.counterexample is not None
    before, after = dict(result.counterexample.before), dict(result.counterexample.after)
    assert int(after[f"{free.name}[till]"]) == int(before[f"{free.name}[till]"]) + 2


def test_a_row_that_cannot_happen_is_refuted(lending: Declaration) -> None:
    """A guard that no state satisfies is found, so that nothing is proved of nothing."""
    row = lending.transition["take"]
    cell = row.effect[0].cell
    assert isinstance(cell, Number)

    assert "take can happen" in failures_of(evolve(row, guard=(cell >= 1,)), lending)


def test_an_invariant_that_the_start_lacks_is_refuted(lending: Declaration) -> None:
    """An invariant is refuted where the initial state does not satisfy it."""
    free = lending.transition["take"].effect[1].cell
    assert isinstance(free, Number)
    wrong = Invariant("empty_till", "The till is empty.", free == 0, property="S1")
    changed = evolve(lending, invariants=(*lending.invariants, wrong), checked=False)

    assert failures(check_initial(changed)) == ["start has empty_till"]


def test_a_consequence_that_does_not_follow_is_refuted(lending: Declaration) -> None:
    """A declared consequence is refuted where the other invariants do not imply it."""
    free = lending.transition["take"].effect[1].cell
    assert isinstance(free, Number)
    wrong = Invariant(
        "full_till", "Nothing is held.", free == lending.constants[0], "S1", consequence=True
    )
    changed = evolve(lending, invariants=(*lending.invariants, wrong), checked=False)

    assert failures(check_consequences(changed)) == ["full_till follows"]


def test_a_consequence_is_assumed_by_no_proof(lending: Declaration) -> None:
    """An invariant that is declared a consequence does not help to prove another."""
    needed, other = lending.invariants[1], lending.invariants[0]
    changed = evolve(lending, invariants=(other, evolve(needed, consequence=True)), checked=False)

    results = check_row(changed, changed.complete_transitions["give"])

    assert "give keeps held_minimum" in failures(results)


def test_a_row_is_tried_with_its_parameters_equal() -> None:
    """A request may be preempted for its own sake, so the row is tried both ways."""
    cases = list(steps_of(SCHEDULER, SCHEDULER.complete_transitions["preempt"]))

    assert [len(set(step.names.values())) for step in cases] == [3, 2]


def test_a_row_is_tried_with_its_block_alone() -> None:
    """A pool may have one block only, so a row that takes a block is tried without another."""
    names = {index: index for index in SCHEDULER.transition["grow"].parameters}

    instances = list(crowds(SCHEDULER, names))  # type: ignore[arg-type]

    assert [len(item["block"]) for item in instances] == [2, 1]
    assert [len(item["request"]) for item in instances] == [2, 2]


def test_a_fault_of_a_pool_with_one_slot_is_found(lending: Declaration) -> None:
    """A row that is wrong only where there is a single instance of a counted role is refuted."""
    size = lending.constants[0]
    slot = Role("slot", "a place", plural="slots", count=size)
    till, s, y = lending.role["till"], slot.index("s"), slot.index("y")
    taken = Variable[Formula]("taken", (slot,), "whether it is taken", flag=True)
    left = Variable[Number]("left", (till,), "places left", initial=size)
    row = Transition(
        "occupy",
        "A free place is taken.",
        "none",
        parameters=(s,),
        guard=(no(taken[s]),),
        effect=(
            taken[s].becomes(value=True),
            left[till].becomes(left[till] - choose(size == 1, 0, 1)),
        ),
    )
    invariant = Invariant(
        "left_is_counted", "Places left.", left[till] == total(y, no(taken[y])), property="S3"
    )
    counted = Invariant(
        "all_are_counted",
        "Each place is taken or left.",
        left[till] + total(y, taken[y]) == size,
        property="S3",
    )
    changed = evolve(
        lending,
        roles=(*lending.roles, slot),
        variables=(lending.state, taken, left),
        transitions=(row,),
        invariants=(invariant, counted),
        checked=False,
    )

    assert "occupy keeps left_is_counted" in failures(check_row(changed, row))


def test_what_a_row_does_not_write_it_does_not_touch() -> None:
    """The frame of a row is every variable it does not write, through source and target too."""
    admit = SCHEDULER.complete_transitions["admit"]
    by_name = {item.name: item.formula for item in SCHEDULER.all_invariants}

    assert touches(admit, by_name["running_is_counted"])
    assert not touches(admit, by_name["references_are_exact"])


def test_a_dropped_hypothesis_takes_its_facts_with_it() -> None:
    """A sum is known not to be negative only as long as the invariant that says so is assumed."""
    x = SCHEDULER.role["request"].index("x")
    scheduled = SCHEDULER.variable["scheduled"][x]
    assert isinstance(scheduled, Number)
    setting = Setting(SCHEDULER, {"request": (x,)}, whole=True)
    query = Query(setting)
    for name, terms in setting.hypotheses().items():
        query.assume_switched(name, terms)
    negative = setting.term(total(x, scheduled)) < 0

    assert query.check(negative) is Sat.NO
    assert query.check(negative, without="running_minimum") is Sat.NO
    assert query.check(negative, without="scheduled_minimum") is Sat.YES


def test_a_sum_over_a_counted_role_is_as_large_as_the_role() -> None:
    """The sum of one over all blocks is the number of blocks."""
    y = SCHEDULER.role["block"].index("y")
    setting = Setting(SCHEDULER, {"block": (y,)})
    blocks = Constant("TOTAL_BLOCKS", "the same constant")

    claim = setting.term(total(y, count_if(blocks >= 1))) != setting.term(blocks)

    assert Query(setting).check(claim) is Sat.NO
