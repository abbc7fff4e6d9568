"""The generated state starts as declared, grows without losing anything, and refuses bad sizes."""

from __future__ import annotations

from typing import Any

import pytest

from kvproof.core import DIGEST, Configuration, State, Status, rows
from kvproof.spec.digest import digest
from kvproof.spec.scheduler import SCHEDULER

GOOD = {
    "block_size": 2,
    "total_blocks": 4,
    "token_budget": 5,
    "max_running": 2,
    "watermark": 0,
    "max_drafts": 0,
    "lookahead": 0,
    "encoder_slots": 0,
    "encoder_budget": 0,
}
LEAST = {constant.name.lower(): constant.minimum for constant in SCHEDULER.constants}


def test_state_starts_as_declared(tools: Any) -> None:
    """Every cell of a new state holds what the interpreter starts with."""
    assert tools.Twins().differences() == []


def test_null_block_is_no_instance() -> None:
    """Block 0 is never in the free queue, so that no row can take it."""
    state = State(Configuration(**GOOD))

    assert state.block.queued.tolist() == [False, True, True, True, True]
    assert state.pool.free == 4


@pytest.mark.parametrize("name", LEAST)
@pytest.mark.parametrize("value", ["too small", -1, 1.5, "2", None])
def test_bad_constant_is_refused(name: str, value: object) -> None:
    """A constant below its minimum, or no whole number, is refused by name."""
    least = LEAST[name]
    bad = least - 1 if value == "too small" else value
    message = rf"{name} is {bad!r}; expected a whole number of at least {least}"

    with pytest.raises(ValueError, match=message):
        Configuration(**{**GOOD, name: bad})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", LEAST)
def test_the_least_constant_is_taken(name: str) -> None:
    """Each constant may be as small as it is declared, and every one of them has a place."""
    configuration = Configuration(**{**GOOD, name: LEAST[name]})

    assert getattr(configuration, name) == LEAST[name]
    assert set(GOOD) == set(LEAST)


def test_configuration_cannot_change() -> None:
    """The constants of a state are fixed."""
    with pytest.raises(AttributeError):
        Configuration(**GOOD).block_size = 3  # type: ignore[misc]


def test_state_has_no_other_variables() -> None:
    """A misspelt variable is an error, not a new attribute."""
    state = State(Configuration(**GOOD))
    parts: tuple[Any, ...] = (state, state.pool, state.step, state.request, state.request.cells)
    for part in parts:
        with pytest.raises(AttributeError):
            part.spelling = 1


def test_reserve_keeps_values(tools: Any) -> None:
    """A larger state holds what it held, and new rows are as at the start."""
    twins = tools.Twins.ready_for("process", 0)
    core, before = twins.core, tools.snapshot(twins.core)

    core.request.reserve(8)
    core.fence.reserve(6)
    core.item.reserve(5)

    fresh = tools.snapshot(State(core.configuration, 8, 6, 5))
    after = tools.snapshot(core)
    for name, held in before.items():
        if isinstance(held, list):
            assert after[name] == held + fresh[name][len(held) :]
        else:
            assert after[name] == held
    assert twins.differences() == []


def test_cells_look_at_the_larger_columns() -> None:
    """After room was made, rows and columns still see the same memory."""
    state = State(Configuration(**GOOD), requests=1, fences=1)
    state.request.reserve(5)

    assert rows.arrive(state, 4, 2, 1, 2)

    assert state.request.known.tolist() == [0, 0, 0, 0, 2]
    assert state.request.cells.known[4] == 2
    assert len(state.request.scratch) == 5


def test_reserving_less_changes_nothing() -> None:
    """Columns never shrink, and columns that are large enough stay where they are."""
    state = State(Configuration(**GOOD), requests=4)
    column = state.request.known

    state.request.reserve(4)
    state.request.reserve(1)

    assert state.request.known is column
    assert state.request.capacity == 4


def test_statuses_and_digest_are_the_declared_ones() -> None:
    """The core carries the declaration's digest, and numbers statuses as it does."""
    members = [name for name, _ in SCHEDULER.enumeration.members]

    assert digest(SCHEDULER) == DIGEST
    assert [(item.name, item.value) for item in Status] == [
        (name, value) for value, name in enumerate(members)
    ]
