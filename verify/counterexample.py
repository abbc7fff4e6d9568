"""A counterexample as a reader wants it: the arguments, and only the fields that matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvproof.spec.rows import Invariant
from kvproof.verify.verdict import Counterexample

if TYPE_CHECKING:
    from kvproof.verify.induction import Step
    from kvproof.verify.query import Query


def counterexample_to_induction(step: Step, invariant: Invariant) -> Counterexample:
    return Counterexample(str(step.query.model))


def state_that_breaks(query: Query, invariant: Invariant) -> Counterexample:
    return Counterexample(str(query.model))
