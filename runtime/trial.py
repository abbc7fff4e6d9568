"""A copy of the books to try a pass on, so that what it would decide can be known and not done.

What a pass never changes is shared with the original: tokens, requests, hashes, the policies. The
connector is not asked; in its place stands what it said last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from attrs import evolve, frozen

from kvproof.core import State
from kvproof.core.arrays import Integers
from kvproof.core.tables import Tables
from kvproof.runtime.books import Books
from kvproof.runtime.silent_connector import SilentConnector
from kvproof.runtime.transfers import Answer
from kvproof.runtime.waiting_queue import OrderedQueue


def copy_of(books: Books) -> Books:
    """Return books that can be changed without a trace in the original."""
    shared = _shared(books)
    memo: dict[int, Any] = {id(part): part for part in shared}
    memo[id(books.state)] = _copy_of_state(books.state)
    memo[id(books.table.requests)] = books.table.requests.copy()
    memo |= {id(books._images): {}, id(books._image): None}
    if books.fences._on_free is not None:
        memo[id(books.fences._on_free)] = _forget
    if books.prefix is not None:
        rows = books.prefix._rows.items()
        memo[id(books.prefix._rows)] = {row: evolve(own) for row, own in rows}
        memo[id(books.prefix.events)] = type(books.prefix.events)()
    if books.transfers is not None:
        memo[id(books.transfers.connector)] = LastAnswers.of(books)
    return deepcopy(books, memo)


def _shared(books: Books) -> list[object]:
    """Return what is the same in the copy, for no pass changes it."""
    shared: list[object] = [books.config, books.table.tokens]
    if books.prefix is not None:
        shared += [books.prefix.prefixes, books.prefix._tokens]
    if isinstance(books.waiting, OrderedQueue):
        shared += [books.waiting._order, *books.waiting._keys]
    return shared


def _forget(blocks: Integers) -> None:
    """Do nothing with freed blocks: they are free in the copy only."""


def _copy_of_state(state: State) -> State:
    request, fence, item = state.request.capacity, state.fence.capacity, state.item.capacity
    fresh = State(state.configuration, request, fence, item)
    for part in ("request", "block", "fence", "item"):
        _copy_columns(getattr(state, part), getattr(fresh, part))
    for part in ("pool", "step"):
        for name in type(getattr(state, part)).__slots__:
            setattr(getattr(fresh, part), name, getattr(getattr(state, part), name))
    return fresh


def _copy_columns(old: Any, fresh: Any) -> None:
    for name in type(old).__slots__:
        column = getattr(old, name)
        if isinstance(column, Tables):
            getattr(fresh, name).rows = column.rows.copy()
        elif name not in {"capacity", "cells", "scratch"}:
            getattr(fresh, name)[:] = column


@frozen
class LastAnswers(SilentConnector):
    """A connector that says again what another one said last, and loads nothing.

    Of a request that the other has not been asked about, or could not answer for, it says so too.
    """

    answers: Mapping[str, Answer | None]

    @classmethod
    def of(cls, books: Books) -> LastAnswers:
        """Read them off the books of a scheduler."""
        assert books.transfers is not None
        requests, answers = books.table.requests, books.transfers.answers
        return cls({requests[row].request_id: answer for row, answer in answers.items()})

    def match(
        self,
        request_id: str,
        block_hashes: Sequence[bytes],
        num_tokens: int,
        num_computed_tokens: int,
    ) -> tuple[int | None, bool]:
        """Return what lies between what is computed now and the end that was named then."""
        answer = self.answers.get(request_id)
        if answer is None:
            return None, False
        end = min(answer.end, num_tokens - (0 if answer.is_async else 1))
        return max(end - num_computed_tokens, 0), answer.is_async
