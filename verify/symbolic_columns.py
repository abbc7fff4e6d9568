"""Numpy arrays of symbolic values in which a comparison yields formulas, where numpy would fork."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from kvproof.verify.symbolic import ColumnFlag, SymbolicFlag, WrongKindError

_COMPARISONS = frozenset(
    {np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal}
)


class SymbolicColumn(np.ndarray[Any, Any]):
    """A column of symbolic values, or what an expression over columns gives."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Compute element by element with Python's operators; a comparison is not decided yet."""
        out = options.pop("out", None)
        if out is not None:
            options["out"] = tuple(_plain(item) for item in out)
        if ufunc in _COMPARISONS:
            options["dtype"] = object
        result = getattr(ufunc, method)(*map(_plain, inputs), **options)
        return _wrapped(result) if out is None else out[0]

    def __getitem__(self, key: Any) -> Any:
        """Return the values at some places; a condition is decided for each of them."""
        return super().__getitem__(_decided(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set the values at some places; a condition is decided for each of them."""
        super().__setitem__(_decided(key), _in_column(value))


def column(values: Iterable[object]) -> SymbolicColumn:
    """Return the values as a column."""
    items = list(values)
    plain = np.empty(len(items), dtype=object)
    for place, value in enumerate(items):
        plain[place] = _in_column(value)
    return plain.view(SymbolicColumn)


def _in_column(value: Any) -> Any:
    return ColumnFlag(value.term) if isinstance(value, SymbolicFlag) else value


def _decided(key: Any) -> Any:
    """Return an index; formulas in it become truth values of the path that is being run."""
    if not isinstance(key, SymbolicColumn):
        return key
    if not all(isinstance(item, SymbolicFlag | bool) for item in key.tolist()):
        raise WrongKindError(f"{key} was used as an index")
    return np.array([bool(item) for item in key.tolist()])


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, SymbolicColumn) else value


def _wrapped(result: Any) -> Any:
    same = not isinstance(result, np.ndarray) or result.dtype != object
    return result if same else column(result)
