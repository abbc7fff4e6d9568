"""What the proofs say about sums, itself proved: each lemma by induction over prefix sums.

Instances are numbered; a sum over all of them is the last prefix sum of an arbitrary sequence, of
which no more is known than `sum(n + 1) = sum(n) + term(n)`. A lemma says something about the first
n terms, given something about each of them. Its step needs both for one n only, so no query has a
quantifier. `sums.py` and `trees.split` use these lemmas and nothing else about sums.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import z3
from attrs import evolve, frozen

from kvproof.verify.query import TIMEOUT_MILLISECONDS, Sat
from kvproof.verify.solvers import decide
from kvproof.verify.terms import Term
from kvproof.verify.verdict import Counterexample, Method, Result, Verdict

n = z3.Int("n")
at, another = z3.Ints("at another")
factor, value, left, right = z3.Ints("factor value left right")
flag = z3.Bool("flag")


@frozen
class Sequence:
    """An arbitrary sequence of whole numbers that may depend on arguments, and its prefix sums."""

    name: str
    arguments: tuple[Term, ...] = ()

    def __getitem__(self, position: Term) -> Term:
        """Return the term at a position."""
        return self._apply(self.name, position)

    def sum(self, count: Term) -> Term:
        """Return the sum of the first `count` terms."""
        return self._apply(f"sum of {self.name}", count)

    def definition(self) -> tuple[Term, Term]:
        """Return what a prefix sum is: nothing at first, and one more term at n."""
        return self.sum(z3.IntVal(0)) == 0, self.sum(n + 1) == self.sum(n) + self[n]

    def _apply(self, name: str, position: Term) -> Term:
        sorts = [z3.IntSort()] * (len(self.arguments) + 2)
        return z3.Function(name, *sorts)(*self.arguments, position)


@frozen(eq=False)
class Lemma:
    """For every n: where `given` is true, and `each` is true of each of n terms, `holds` is of n.

    `each` is written about the term at n; `given` is about numbers that no n changes.
    """

    name: str
    sentence: str
    sequences: tuple[Sequence, ...]
    holds: Callable[[Term], Term]
    each: tuple[Term, ...] = ()
    given: tuple[Term, ...] = ()

    def refutations(self) -> Iterator[list[Term]]:
        """Yield what would be true if the lemma were false at 0, and first false after n."""
        none, more = zip(*(sequence.definition() for sequence in self.sequences), strict=True)
        yield [*self.given, *none, z3.Not(self.holds(z3.IntVal(0)))]
        yield [*self.given, *more, *self.each, n >= 0, self.holds(n), z3.Not(self.holds(n + 1))]

    def opposites(self) -> Iterator[Lemma]:
        """Yield the lemma without each one of its hypotheses; none of these may be provable."""
        for index in range(len(self.each)):
            yield evolve(self, each=self.each[:index] + self.each[index + 1 :])
        for index in range(len(self.given)):
            yield evolve(self, given=self.given[:index] + self.given[index + 1 :])


f, g, h = Sequence("f"), Sequence("g"), Sequence("h")
f_left, f_right = Sequence("f", (left,)), Sequence("f", (right,))


def _up_to(count: Term, position: Term, number: Term) -> Term:
    return z3.If(position < count, number, 0)


LEMMAS = (
    Lemma(
        "sum_is_not_negative",
        "A sum of terms that are never negative is not negative.",
        (f,),
        holds=lambda count: f.sum(count) >= 0,
        each=(f[n] >= 0,),
    ),
    Lemma(
        "sum_is_not_larger",
        "Terms that are never larger have a sum that is not larger.",
        (f, g),
        holds=lambda count: f.sum(count) <= g.sum(count),
        each=(f[n] <= g[n],),
    ),
    Lemma(
        "sum_is_at_least_each_term",
        "A sum of terms that are never negative is at least each of its terms.",
        (f,),
        holds=lambda count: z3.And(
            f.sum(count) >= 0, z3.Implies(at < count, f.sum(count) >= f[at])
        ),
        each=(f[n] >= 0,),
        given=(at >= 0,),
    ),
    Lemma(
        "positive_sum_has_a_positive_term",
        "A sum without a positive term is not positive.",
        (f,),
        holds=lambda count: f.sum(count) <= 0,
        each=(f[n] <= 0,),
    ),
    Lemma(
        "one_changed_term_changes_the_sum",
        "If only one term changes, the sum changes by the difference of that term.",
        (f, g),
        holds=lambda count: g.sum(count) == f.sum(count) + _up_to(count, at, g[at] - f[at]),
        each=(z3.Or(n == at, g[n] == f[n]),),
        given=(at >= 0,),
    ),
    Lemma(
        "sum_is_a_term_and_the_rest",
        "A sum is a named term and the sum of the others.",
        (f, g),
        holds=lambda count: f.sum(count) == g.sum(count) + _up_to(count, at, f[at]),
        each=(g[n] == z3.If(n == at, 0, f[n]),),
        given=(at >= 0,),
    ),
    Lemma(
        "sum_is_two_terms_and_the_rest",
        "A sum is the terms of two different instances and the sum of the others.",
        (f, g),
        holds=lambda count: (
            f.sum(count)
            == g.sum(count) + _up_to(count, at, f[at]) + _up_to(count, another, f[another])
        ),
        each=(g[n] == z3.If(z3.Or(n == at, n == another), 0, f[n]),),
        given=(at >= 0, another >= 0, at != another),
    ),
    Lemma(
        "sum_of_added_terms",
        "The sum of added terms is the sum of the sums.",
        (f, g, h),
        holds=lambda count: h.sum(count) == f.sum(count) + g.sum(count),
        each=(h[n] == f[n] + g[n],),
    ),
    Lemma(
        "sum_of_differences",
        "The sum of differences is the difference of the sums.",
        (f, g, h),
        holds=lambda count: h.sum(count) == f.sum(count) - g.sum(count),
        each=(h[n] == f[n] - g[n],),
    ),
    Lemma(
        "sum_of_multiples",
        "The sum of multiples by one factor is that multiple of the sum.",
        (f, g),
        holds=lambda count: g.sum(count) == factor * f.sum(count),
        each=(g[n] == factor * f[n],),
    ),
    Lemma(
        "sum_of_chosen_terms",
        "If one condition chooses every term, it chooses the sum.",
        (f, g, h),
        holds=lambda count: h.sum(count) == z3.If(flag, f.sum(count), g.sum(count)),
        each=(h[n] == z3.If(flag, f[n], g[n]),),
    ),
    Lemma(
        "sum_of_a_constant",
        "The sum of one value is that value times the number of instances.",
        (f,),
        holds=lambda count: f.sum(count) == value * count,
        each=(f[n] == value,),
    ),
    Lemma(
        "equal_terms_have_equal_sums",
        "Terms that are equal have equal sums.",
        (f, g),
        holds=lambda count: f.sum(count) == g.sum(count),
        each=(f[n] == g[n],),
    ),
    Lemma(
        "equal_arguments_give_equal_sums",
        "Sums of the same terms of equal arguments are equal.",
        (f_left, f_right),
        holds=lambda count: f_left.sum(count) == f_right.sum(count),
        given=(left == right,),
    ),
)


def check_lemmas() -> list[Result]:
    """Return, for each lemma about sums, that it is true of any number of terms."""
    return [check_lemma(lemma) for lemma in LEMMAS]


def check_lemma(lemma: Lemma) -> Result:
    """Return that the lemma is true of no term, and of one more term wherever it is true."""
    start = time.process_time()
    answers = [_answer(terms) for terms in lemma.refutations()]
    verdict = next((answer.as_unsatisfiable for answer in answers if answer is not Sat.NO), None)
    reason = None
    if verdict is Verdict.REFUTED:
        reason = Counterexample(f"not by induction: {lemma.sentence}")
    return Result(
        lemma.name,
        "",
        "",
        Method.LEMMA,
        verdict or Verdict.PROVED,
        time.process_time() - start,
        reason,
    )


def _answer(terms: list[Term]) -> Sat:
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT_MILLISECONDS)
    solver.add(terms)
    return Sat(decide(solver))
