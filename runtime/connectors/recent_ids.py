"""Ids that must be remembered for a while, but not for ever."""

from __future__ import annotations

from attrs import define, field

IDS_MAX = 65_536


@define(eq=False)
class RecentIds:
    """A set that forgets its oldest ids: what nobody asks about any more must not add up."""

    limit: int = IDS_MAX
    _ids: dict[str, None] = field(factory=dict, init=False)

    def add(self, request_id: str) -> None:
        """Remember an id."""
        self._ids[request_id] = None
        if len(self._ids) > self.limit:
            del self._ids[next(iter(self._ids))]

    def discard(self, request_id: str) -> bool:
        """Forget an id; return whether it was remembered."""
        if request_id not in self._ids:
            return False
        del self._ids[request_id]
        return True

    def __contains__(self, request_id: str) -> bool:
        """Return whether an id is remembered."""
        return request_id in self._ids
