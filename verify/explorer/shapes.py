"""The kinds of requests that an exploration is made of; they are part of its bound."""

from __future__ import annotations

from attrs import evolve, frozen

WHOLE = 1 << 20  # an offer of all tokens that are known, however many they have become


@frozen(kw_only=True)
class Shape:
    """One kind of request, and how the connector may treat it.

    Attributes:
        prompt: tokens of the prompt.
        max_tokens: tokens to sample.
        offers: leading tokens that the connector may say it can load, each time anew; it may
            always say that it has none, or "ask again". Empty: it has nothing, and says so.
        synchronous: what it loads is there when the step runs, or has failed by then.
        priority: the least goes first, under the policy "priority".
        stops: it may sample a stop token at any time.
        sends: its blocks are kept when it is complete, until they have been sent.

    """

    prompt: int
    max_tokens: int
    offers: tuple[int, ...] = ()
    synchronous: bool = False
    priority: int = 0
    stops: bool = False
    sends: bool = False

    def __str__(self) -> str:
        """Return it in a few words, such as "5+2 loads 4"."""
        parts = [f"{self.prompt}+{self.max_tokens}"]
        if self.offers:
            offered = " or ".join("all" if n == WHOLE else str(n) for n in self.offers)
            parts.append(f"loads {offered}" + (" at once" if self.synchronous else ""))
        parts += ["may stop"] * self.stops + ["is sent"] * self.sends
        parts += [f"priority {self.priority}"] if self.priority else []
        return " ".join(parts)

    def offered(self, known: int, computed: int) -> list[int]:
        """Return what may be offered beyond `computed` of `known` tokens, the most first."""
        most = known - (1 if self.synchronous else 0)
        offered = {min(n, most) - computed for n in self.offers}
        return sorted((n for n in offered if n > 0), reverse=True)


def default_shapes(blocks: int, block_size: int, policy: str) -> tuple[Shape, ...]:
    """Return shapes that between them meet every public freeze of loads, in a pool of that size.

    They end within a block and at its border, grow over a border, load a part and all of their
    prompt, at once or meanwhile, and one of them never fits (vllm#39734). Under "priority" some
    are less urgent.
    """
    size, pool = block_size, blocks * block_size
    half = max(pool // 2, 2)
    shapes = [
        Shape(prompt=1, max_tokens=min(size + 1, pool - 1), stops=True),
        Shape(prompt=half, max_tokens=2),
        Shape(prompt=half + 1, max_tokens=2, offers=(size,)),
        Shape(prompt=half + size, max_tokens=1, offers=(half,), sends=True),
        Shape(prompt=2 * size, max_tokens=2, offers=(WHOLE,)),
        Shape(prompt=half, max_tokens=2, offers=(size,), synchronous=True),
        Shape(prompt=pool + 1, max_tokens=1),
    ]
    if policy == "priority":
        shapes += [evolve(shape, priority=1) for shape in shapes[1:4]]
    return tuple(shapes)
