"""Whole numbers and truth values that stand for any value, for Python that does not know it.

Operators build z3 terms. Asking for a truth value asks the path that is being run; asking for
anything that a symbolic value cannot be (a list index, a float) is an error that ends the path.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import z3

from kvproof.verify.paths import current_path
from kvproof.verify.terms import Term


class WrongKindError(TypeError):
    """A number was used as a truth value, or a truth value as a number, where that is not meant."""


def number_term(value: object) -> Term | None:
    """Return a value as a z3 number, as Python would see it, or None if it is none."""
    if isinstance(value, SymbolicNumber):
        return value.term
    if isinstance(value, SymbolicFlag):
        return z3.If(value.term, z3.IntVal(1), z3.IntVal(0))
    if isinstance(value, bool | int | np.bool_ | np.integer):
        return z3.IntVal(int(value))
    return None


def flag_term(value: object) -> Term | None:
    """Return a value as a z3 truth value, or None if it is none."""
    if isinstance(value, SymbolicFlag):
        return value.term
    return z3.BoolVal(bool(value)) if isinstance(value, bool | np.bool_) else None


def _arithmetic(apply: Callable[[Term, Term], Term], *, swapped: bool = False) -> Any:
    def method(self: _Symbolic, other: object) -> Any:
        left, right = number_term(self), number_term(other)
        if right is None:
            return NotImplemented
        return SymbolicNumber(apply(right, left) if swapped else apply(left, right))

    return method


def _comparison(apply: Callable[[Term, Term], Term]) -> Any:
    def method(self: _Symbolic, other: object) -> Any:
        right = number_term(other)
        return NotImplemented if right is None else SymbolicFlag(apply(number_term(self), right))

    return method


def _logic(apply: Callable[[Term, Term], Term]) -> Any:
    def method(self: SymbolicFlag, other: object) -> Any:
        right = flag_term(other)
        return NotImplemented if right is None else SymbolicFlag(apply(self.term, right))

    return method


class _Symbolic:
    """What numbers and truth values have in common: Python can count with both."""

    __slots__ = ("term",)

    def __init__(self, term: Term) -> None:
        self.term = term

    def __repr__(self) -> str:
        return str(self.term)

    __add__ = _arithmetic(operator.add)
    __radd__ = _arithmetic(operator.add, swapped=True)
    __sub__ = _arithmetic(operator.sub)
    __rsub__ = _arithmetic(operator.sub, swapped=True)
    __mul__ = _arithmetic(operator.mul)
    __rmul__ = _arithmetic(operator.mul, swapped=True)
    __lt__ = _comparison(operator.lt)
    __le__ = _comparison(operator.le)
    __gt__ = _comparison(operator.gt)
    __ge__ = _comparison(operator.ge)
    __eq__ = _comparison(operator.eq)
    __ne__ = _comparison(operator.ne)
    __hash__ = None  # type: ignore[assignment]


class SymbolicNumber(_Symbolic):
    """Any whole number."""

    __slots__ = ()

    def __bool__(self) -> bool:
        """Return, on this path, whether the number is not zero."""
        return current_path().decide(self.term != 0)

    def __neg__(self) -> SymbolicNumber:
        """Return the number with its sign changed."""
        return SymbolicNumber(-self.term)


class SymbolicFlag(_Symbolic):
    """True or false."""

    __slots__ = ()

    def __bool__(self) -> bool:
        """Return, on this path, whether it is true."""
        return current_path().decide(self.term)

    def __invert__(self) -> SymbolicFlag:
        """Refuse: `~` of a plain Python truth value is a number, and never zero."""
        raise WrongKindError("~ of a plain truth value; write `not`")

    __and__ = __rand__ = _logic(z3.And)
    __or__ = __ror__ = _logic(z3.Or)


class ColumnFlag(SymbolicFlag):
    """A truth value in a numpy column, where `~` means `not`."""

    __slots__ = ()

    def __invert__(self) -> SymbolicFlag:
        """Return the opposite."""
        return ColumnFlag(z3.Not(self.term))


def whole_number(value: Any) -> Any:
    """Return `int(value)`, or a symbolic number as it is: what `int` does to a numpy number."""
    return SymbolicNumber(number_term(value)) if isinstance(value, _Symbolic) else int(value)
