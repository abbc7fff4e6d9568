"""Connectors that answer what they are told to, so that every answer can be tried."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from kvproof.runtime.silent_connector import SilentConnector
from kvproof.verify.explorer.events import Answer

Options = Callable[[str, int, int], Sequence[tuple[int | None, bool]]]


class KeepingConnector(SilentConnector):
    """Loads nothing and keeps what it is told to; whoever drives it says when transfers end."""

    def __init__(self, keeps: Collection[str] = ()) -> None:
        """Keep the blocks of these requests until they are sent."""
        self._keeps = frozenset(keeps)

    def finished(self, request_id: str, block_ids: Sequence[int]) -> bool:
        """Return whether the blocks are kept."""
        return request_id in self._keeps


class ScriptedConnector(KeepingConnector):
    """Answers with one of several options, and tells how many there were.

    Attributes:
        script: which option to take at each question in turn; after that the first.
        asked: which option was taken at each question, and how many there were.
        answers: what was answered.
        started: the loads that were started: whose, its blocks, the first token and how many.

    """

    def __init__(self, options: Options, keeps: Collection[str]) -> None:
        """Answer with what `options` returns of a request, its known and its computed tokens."""
        super().__init__(keeps)
        self._options = options
        self.begin(())

    def begin(self, script: Sequence[int]) -> None:
        """Take a script for the next pass."""
        self.script = list(script)
        self.asked: list[tuple[int, int]] = []
        self.answers: list[Answer] = []
        self.started: list[tuple[str, tuple[int, ...], int, int]] = []
        self._to_repeat: list[Answer] = []

    def repeat(self, answers: Sequence[Answer]) -> None:
        """Answer in the next pass as in another one."""
        self.begin(())
        self._to_repeat = list(answers)

    def match(
        self,
        request_id: str,
        block_hashes: Sequence[bytes],
        num_tokens: int,
        num_computed_tokens: int,
    ) -> tuple[int | None, bool]:
        """Answer as the script says."""
        options = self._options(request_id, num_tokens, num_computed_tokens)
        place = len(self.asked)
        if self._to_repeat:
            _, *answer = self._to_repeat.pop(0)
            self.script = [*self.script, options.index(tuple(answer))]
        chosen = self.script[place] if place < len(self.script) else 0
        self.asked.append((chosen, len(options)))
        tokens, is_asynchronous = options[chosen]
        self.answers.append((request_id, tokens, is_asynchronous))
        return tokens, is_asynchronous

    def allocated(
        self, request_id: str, block_ids: Sequence[int], first_token: int, num_tokens: int
    ) -> None:
        """Take note of a load."""
        if num_tokens:
            self.started.append((request_id, tuple(block_ids), first_token, num_tokens))


class AnsweringConnector(KeepingConnector):
    """Gives each request the next of the answers that are meant for it, or has nothing."""

    answers: Sequence[Answer] = ()

    def match(
        self,
        request_id: str,
        block_hashes: Sequence[bytes],
        num_tokens: int,
        num_computed_tokens: int,
    ) -> tuple[int | None, bool]:
        """Answer as was said before the pass."""
        for place, (name, tokens, is_asynchronous) in enumerate(self.answers):
            if name == request_id:
                self.answers = [*self.answers[:place], *self.answers[place + 1 :]]
                return tokens, is_asynchronous
        return 0, False
