"""Moves of a request that several invariants speak of: its state before and its state after."""

from kvproof.spec.expression import Formula, Index, all_of, held_before, no
from kvproof.spec.statuses import RUNNING, WAITING_FOR_REMOTE_KVS
from kvproof.spec.variables import status


def starts_to_run(owner: Index) -> Formula:
    """Return whether a row admits a request."""
    return all_of(no(held_before(status[owner] == RUNNING)), status[owner] == RUNNING)


def is_parked_to_be_loaded(owner: Index) -> Formula:
    """Return whether a row parks a request to be loaded."""
    return all_of(
        no(held_before(status[owner] == WAITING_FOR_REMOTE_KVS)),
        status[owner] == WAITING_FOR_REMOTE_KVS,
    )
