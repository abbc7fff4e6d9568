"""Draft tokens: stored behind the known tokens of a request until the next step tries them.

Rule: vLLM Scheduler.update_draft_token_ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kvproof.core import Status, rows
from kvproof.runtime.books import Books
from kvproof.runtime.errors import BrokenInvariant, CallerError


def checked(drafts: Mapping[str, Sequence[int]], most: int) -> dict[str, list[int]]:
    """Return drafts as lists of numbers.

    Raises:
        CallerError: If a request has more than `most`, or some are no whole numbers.

    """
    found = {}
    for name, tokens in drafts.items():
        numbers = np.asarray(tokens)
        if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
            message = f"saw {tokens!r} as drafts of {name!r}; expected a list of whole numbers."
            raise CallerError(message)
        if len(numbers) > most:
            message = (
                f"saw {len(numbers)} draft tokens for {name!r}, expected at most"
                f" num_speculative_tokens, {most}."
            )
            raise CallerError(message)
        found[name] = numbers.tolist()
    return found


def propose(books: Books, row: int, tokens: list[int]) -> None:
    """Give a request draft tokens, if it decodes; those past what it may sample are cut.

    One that computes anew in place, as only the reference does, has to catch up before.
    """
    cells = books.state.request.cells
    decodes = cells.decoding[row] and row not in books.cut_rows
    if cells.status[row] != Status.RUNNING or not decodes:
        return
    known = cells.known[row]
    tokens = tokens[: max(cells.ceiling[row] - known, 0)]
    if not rows.propose(books.state, row, len(tokens)):
        raise BrokenInvariant(f"row {row} decodes but may not have {len(tokens)} draft tokens.")
    books.table.tokens.write(row, known, tokens)
