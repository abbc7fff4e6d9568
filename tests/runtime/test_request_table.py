"""Rows are given to requests, grow with them, and forget those that have left."""

from kvproof.core import State
from kvproof.runtime import Request, SchedulerConfig
from kvproof.runtime.request_table import NO_TOKEN, RequestTable


def table_of(rows: int) -> RequestTable:
    """Return an empty table with room for so many requests."""
    return RequestTable(State(SchedulerConfig(num_blocks=5).constants(), rows))


def insert(table: RequestTable, name: str, stops: tuple[int, ...] = ()) -> int:
    """Put a request of one token into the next row, and return the row."""
    row = table.next_row()
    table.insert(row, Request(name, [ord(name)], 3, stops), limit=4)
    return row


def test_rows_are_given_in_order_and_used_again() -> None:
    """The row that was left last is the next to be given."""
    table = table_of(4)
    assert [insert(table, name) for name in "abc"] == [0, 1, 2]
    table.remove(1)

    assert insert(table, "d") == 1
    assert table.row_of == {"a": 0, "c": 2, "d": 1}


def test_next_row_gives_nothing_away() -> None:
    """Asking for the next row twice names the same one."""
    table = table_of(2)

    assert table.next_row() == table.next_row() == 0


def test_table_grows_and_keeps_what_is_in_it() -> None:
    """More requests than rows double the table; the earlier ones stay where they are."""
    table = table_of(2)
    placed = {name: insert(table, name, (ord(name) + 1,)) for name in "abcdefg"}

    assert list(placed.values()) == list(range(7))
    assert len(table.requests) == table._state.request.capacity == 8
    for name, row in placed.items():
        assert table.requests[row].request_id == name
        assert table.tokens.known(row, 1) == [ord(name)]
        assert table.stop_token[row] == ord(name) + 1
    assert table.stop_token[7] == NO_TOKEN


def test_no_two_requests_share_a_serial_number() -> None:
    """A row that is used again has another serial number than before."""
    table, seen = table_of(2), []
    for name in "abcdefgh":
        row = insert(table, name)
        seen.append(int(table.serial[row]))
        table.remove(row)

    assert len(set(seen)) == 8
    assert 0 not in seen


def test_stop_tokens_are_kept_by_number() -> None:
    """None, one and several stop tokens are told apart, and leave with their request."""
    table = table_of(4)
    for name, stops in (("a", ()), ("b", (0,)), ("c", (5, 6))):
        insert(table, name, stops)

    assert table.stop_token[:3].tolist() == [NO_TOKEN, 0, NO_TOKEN]
    assert table.several_stops == {2: frozenset({5, 6})}
    table.remove(2)
    assert table.several_stops == {}
    assert insert(table, "d", (7,)) == 2
    assert table.stop_token[2] == 7


def test_request_ids_of_rows_are_told_in_order() -> None:
    """Ids come in the order of the rows that were asked for."""
    table = table_of(4)
    rows = [insert(table, name) for name in "abc"]

    assert table.request_ids(table.serial[rows[::-1]] - 1) == ["c", "b", "a"]
