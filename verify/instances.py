"""Instances as arguments: they index columns, and nothing else can be done with them."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import SupportsIndex

from attrs import frozen

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import Index
from kvproof.verify.trees import Instances

Place = int


class WrongRoleError(TypeError):
    """An instance of one role was used as one of another."""


@frozen
class Instance:
    """A named instance, and where in the columns of its role it stands."""

    index: Index
    place: Place

    def __index__(self) -> int:
        """Return the place."""
        return self.place


def place_of(instance: object, role: str) -> Place:
    """Return where an instance stands; one that is known to have another role is refused."""
    if isinstance(instance, Instance) and instance.index.role != role:
        raise WrongRoleError(f"{instance.index.name} is a {instance.index.role}, not a {role}")
    if not isinstance(instance, SupportsIndex):
        raise WrongRoleError(f"{instance!r} is no {role}")
    return operator.index(instance)


def places(declaration: Declaration, named: Instances, *, apart: bool) -> Mapping[Index, Place]:
    """Return a place for each named instance.

    With `apart`, no two instances of any roles have the same place, so that one mistaken for
    another is seen. Without it they stand where the core's columns start.
    """
    found: dict[Index, Place] = {}
    for role in declaration.roles:
        start = max(found.values(), default=-1) + 1 if apart else 0
        for number, index in enumerate(named.get(role.name, ())):
            found[index] = max(start, role.first) + number
    return found
