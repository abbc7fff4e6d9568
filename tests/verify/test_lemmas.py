"""The lemmas about sums: each is proved, and none is without each of its hypotheses."""

import pytest
import z3
from attrs import evolve

from kvproof.verify.lemmas import LEMMAS, Lemma, Sequence, check_lemma, check_lemmas, n
from kvproof.verify.verdict import Method, Verdict


def test_every_lemma_is_proved() -> None:
    """Each lemma is true of no term and of one more term, so of any number of terms."""
    results = check_lemmas()

    assert [item.name for item in results] == [lemma.name for lemma in LEMMAS]
    assert {item.verdict for item in results} == {Verdict.PROVED}
    assert {item.method for item in results} == {Method.LEMMA}


@pytest.mark.parametrize("lemma", LEMMAS, ids=lambda lemma: lemma.name)
def test_no_lemma_is_proved_without_one_of_its_hypotheses(lemma: Lemma) -> None:
    """Dropping any hypothesis makes a lemma unprovable, so none is true for a wrong reason."""
    opposites = list(lemma.opposites())

    assert opposites
    assert {check_lemma(item).verdict for item in opposites} == {Verdict.REFUTED}


@pytest.mark.parametrize("lemma", LEMMAS, ids=lambda lemma: lemma.name)
def test_the_hypotheses_of_a_lemma_can_be_true(lemma: Lemma) -> None:
    """Some sequence satisfies the hypotheses of a lemma together, so it is not about nothing."""
    solver = z3.Solver()
    solver.add(*lemma.given, *lemma.each, n >= 0)
    solver.add(*(part for sequence in lemma.sequences for part in sequence.definition()))

    assert solver.check() == z3.sat


def test_a_wrong_lemma_is_refuted() -> None:
    """A sum of terms that are at least one is not always above the number of terms."""
    f = Sequence("f")
    wrong = Lemma(
        "sum_is_above_the_number",
        "A sum of positive terms is above their number.",
        (f,),
        holds=lambda count: f.sum(count) > count,
        each=(f[n] >= 1,),
    )

    assert check_lemma(wrong).verdict is Verdict.REFUTED
    right = evolve(wrong, holds=lambda count: f.sum(count) >= count)
    assert check_lemma(right).verdict is Verdict.PROVED
