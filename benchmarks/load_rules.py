"""Which share of the loads that could be admitted each rule admits, over all states in a bound.

The states are those that the real runtime reaches where a load is admitted as soon as what it
brings fits (`LoadAdmission.FITS`), so that no rule has kept any out. A load *could* be admitted if
afterwards everybody who holds loaded blocks can still complete in some order (the banker's test):
what is more is a freeze, what is less is given away. A rule that admits more is unsafe.
"""

from __future__ import annotations

import argparse
from collections import Counter

from attrs import define, evolve, field

from kvproof.core import Status
from kvproof.runtime import Profile
from kvproof.runtime.books import Books
from kvproof.runtime.load_admission import LoadWish, blocks_for_all_known, demands, held_together
from kvproof.runtime.profile import LoadAdmission
from kvproof.verify.explorer import Scope, Shape, Transition, explore

SHAPES = (
    Shape(prompt=3, max_tokens=2),
    Shape(prompt=5, max_tokens=2, offers=(2, 4)),
    Shape(prompt=7, max_tokens=2, offers=(2,)),
)


def can_complete(books: Books, wish: LoadWish) -> bool:
    """Return whether all who are loaded, this one among them, can complete in some order."""
    held = books.state.request.cells.held
    needs = {row: (held[row], whole) for row, whole in held_together(books).items()}
    taken = -(-wish.wanted // books.state.block_size)
    needs[wish.row] = taken, max(blocks_for_all_known(books, wish.row), taken)
    available = books.state.total_blocks - sum(have for have, _ in needs.values())
    while ready := [row for row, (have, whole) in needs.items() if whole - have <= available]:
        available += sum(needs.pop(row)[0] for row in ready)
    return not needs


@define
class Survey:
    """How many different loads there were, how many could be admitted, and what each rule says."""

    seen: set[tuple[object, ...]] = field(factory=set)
    possible: int = 0
    admitted: Counter[LoadAdmission] = field(factory=Counter)
    unsafe: Counter[LoadAdmission] = field(factory=Counter)

    def look(self, transition: Transition) -> None:
        """Ask every rule about every load that could be offered where a call was made."""
        books = transition.before._books
        for row in books.waiting:
            for external in (2, 4):
                if external <= books.state.request.cells.known[row]:
                    self._ask(
                        books, LoadWish(row=row, shared=0, external=external, wanted=external)
                    )

    def _ask(self, books: Books, wish: LoadWish) -> None:
        state = books.state
        cells = state.request.cells
        people = sorted(
            (cells.status[row], cells.held[row], cells.known[row], bool(cells.decoding[row]))
            for row in books.table.row_of.values()
            if cells.status[row] in (Status.RUNNING, Status.WAITING_FOR_REMOTE_KVS)
            or cells.landed[row]
        )
        key = (*people, state.pool.free, cells.known[wish.row], wish.external)
        if key in self.seen or -(-wish.wanted // state.block_size) > state.pool.free:
            return
        self.seen.add(key)
        possible = can_complete(books, wish)
        self.possible += possible
        for rule in LoadAdmission:
            if self._allows(books, rule, wish):
                (self.admitted if possible else self.unsafe)[rule] += 1

    @staticmethod
    def _allows(books: Books, rule: LoadAdmission, wish: LoadWish) -> bool:
        usual = books.config
        profile = evolve(usual.profile, load_admission=rule)
        books.config = evolve(usual, profile=profile)
        try:
            return all(demand.fits for demand in demands(books, wish))
        finally:
            books.config = usual


def main() -> None:
    """Explore, and print a line for each rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--most-states", type=int, default=4000, help="for each set of requests")
    asked = parser.parse_args()
    profile = evolve(Profile(), load_admission=LoadAdmission.FITS)
    scope = Scope(
        profile=profile,
        requests=asked.requests,
        blocks=asked.blocks,
        shapes=SHAPES,
        throttles=False,
    )
    survey = Survey()
    explore(scope, checks=[survey.look], most_states=asked.most_states)
    loads, possible = len(survey.seen), survey.possible
    print(f"{loads} different loads fit, after {possible} of them all can complete in some order")
    for rule in LoadAdmission:
        share = 100 * survey.admitted[rule] / max(possible, 1)
        print(f"{rule:14} {share:5.1f} % of those admitted, {survey.unsafe[rule]} that are unsafe")


if __name__ == "__main__":
    main()
