"""Block hashes: what is hashed, that blocks are chained, and that a fast hash decides nothing."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import cbor2
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvproof.runtime import CallerError, EncoderItem
from kvproof.runtime.block_hash import ALGORITHMS, BlockHash, block_hash, encoded
from kvproof.runtime.block_keys import BlockKeys, Keys
from kvproof.runtime.prefixes import Prefix, Prefixes

# The digests of two blocks, (1, 2) with the salt "s", and (3, 4) with the item "i" at its start.
GOLDEN = {
    "sha256": (
        "412ce87e2f3600c7d220dcc11453487e5798bc00e48a79da1c9fff6b89e3e7cc",
        "f201bfb32a366b3f5d3036315b332f33ff55f35ec3dce86820f5a4955e4b583a",
    ),
    "xxh3": (
        "9933d8ddbd3e6ffd06c0a9620703bfe0",
        "0d5a8f1bce0cf3383a322536b262e64b",
    ),
    "sha256_cbor": (
        "d43128ab12800570c3b2e5c13f000d0f21b79ff9270105af4837513ae22f460b",
        "88d80a4e508d97c7abb10b98f35a4284ac764506dbc0c48274d7120ada83c5ed",
    ),
}
TWO_BLOCKS: list[Keys] = [("s",), (("i", 0),)]
TEXTS = st.text("aSI\0", max_size=3)
KEYS = st.lists(st.one_of(TEXTS, st.tuples(TEXTS, st.integers(-3, 3))), max_size=3).map(tuple)
BLOCKS = st.tuples(st.binary(min_size=2, max_size=2), st.lists(st.integers(0, 2**40)), KEYS)


def integers(tokens: list[int]) -> bytes:
    """Return tokens as the hashes take them."""
    return np.array(tokens, dtype="<i8").tobytes()


def digests(name: str, tokens: list[int], keys: list[Keys], seed: str = "0") -> list[str]:
    """Return the digests of consecutive blocks, in hexadecimal."""
    size = len(tokens) // len(keys)
    found = Prefixes(block_hash(name, seed)).follow(None, np.array(tokens), size, keys)
    return [prefix.digest.hex() for prefix in found]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_digests_are_golden(name: str) -> None:
    """The digests are what they have been, so that a process of another version agrees."""
    assert tuple(digests(name, [1, 2, 3, 4], TWO_BLOCKS)) == GOLDEN[name]


def test_sha256_is_of_the_documented_bytes() -> None:
    """The encoding in the docstring, written out by hand, gives the same digest."""
    root = hashlib.sha256(b"0").digest()
    tokens = b"\2\0\0\0" + b"\1" + bytes(7) + b"\2" + bytes(7)
    first = hashlib.sha256(root + tokens + b"S" + b"\1\0\0\0" + b"s").digest()
    tokens = b"\2\0\0\0" + b"\3" + bytes(7) + b"\4" + bytes(7)
    item = b"I" + b"\1\0\0\0" + b"i" + bytes(8)
    second = hashlib.sha256(first + tokens + item).digest()

    assert digests("sha256", [1, 2, 3, 4], TWO_BLOCKS) == [first.hex(), second.hex()]


def test_xxh3_is_of_the_same_bytes() -> None:
    """The fast hash takes the same encoding, and its own hash of the seed."""
    root = xxhash.xxh3_128_digest(b"0")
    first = xxhash.xxh3_128_digest(encoded(root, integers([1, 2]), ("s",)))

    assert digests("xxh3", [1, 2], [("s",)]) == [first.hex()]


def test_sha256_cbor_is_of_vllms_tuple() -> None:
    """The form for other engines is canonical CBOR of parent, tokens and keys, null if none."""
    root = hashlib.sha256(cbor2.dumps("0", canonical=True)).digest()
    first = hashlib.sha256(cbor2.dumps((root, (1, 2), None), canonical=True)).digest()
    value = (first, (3, 4), (("i", 0), "s"))
    second = hashlib.sha256(cbor2.dumps(value, canonical=True)).digest()

    keys: list[Keys] = [(), (("i", 0), "s")]
    assert digests("sha256_cbor", [1, 2, 3, 4], keys) == [first.hex(), second.hex()]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_blocks_are_chained(name: str) -> None:
    """A block's digest depends on every token before it, not on its own alone."""
    first = digests(name, [1, 2, 3, 4, 5, 6], [(), (), ()])
    second = digests(name, [1, 9, 3, 4, 5, 6], [(), (), ()])

    assert all(one != other for one, other in zip(first, second, strict=True))
    assert len(set(first + second)) == 6


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_seed_is_part_of_every_digest(name: str) -> None:
    """Processes with different seeds share nothing; with the same one they agree."""
    keys: list[Keys] = [(), ()]

    assert digests(name, [1, 2], keys, "a") == digests(name, [1, 2], keys, "a")
    assert set(digests(name, [1, 2], keys, "a")).isdisjoint(digests(name, [1, 2], keys, "b"))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_tokens_of_any_size_differ(name: str) -> None:
    """Tokens that agree in their lowest 32 bits are not taken for each other."""
    tokens = [5, 5 + 2**32, -5, 2**63 - 1]

    assert len({digests(name, [token], [()])[0] for token in tokens}) == len(tokens)


@given(BLOCKS, BLOCKS)
def test_no_two_blocks_are_encoded_alike(
    one: tuple[bytes, list[int], Keys], other: tuple[bytes, list[int], Keys]
) -> None:
    """Salts and identifiers with any characters in them cannot imitate other tokens or keys."""
    first, second = (
        encoded(parent, integers(tokens), keys) for parent, tokens, keys in (one, other)
    )

    assert (first == second) == (one == other)


def test_a_salt_is_a_key_of_the_first_block() -> None:
    """The salt stands in the first block; the others are told apart by the chain."""
    assert BlockKeys("salt").of(0, 3, 4) == [("salt",), (), ()]
    assert BlockKeys("salt").of(1, 3, 4) == [(), ()]
    assert BlockKeys().of(0, 2, 4) == [(), ()]


def test_an_item_is_a_key_of_each_block_it_overlaps() -> None:
    """An item is named in its blocks with where it starts, before or in the block."""
    keys = BlockKeys("salt", (EncoderItem("a", 3, 5), EncoderItem("b", 8, 1)))

    assert keys.of(0, 4, 4) == [(("a", 3), "salt"), (("a", -1),), (("b", 0),), ()]


def test_equal_prefixes_are_one_object() -> None:
    """Two requests with the same tokens have the same prefixes, and others have others."""
    prefixes = Prefixes(block_hash("sha256", "0"))
    one = prefixes.follow(None, np.arange(4), 2, [(), ()])
    same = prefixes.follow(None, np.arange(4), 2, [(), ()])
    salted = prefixes.follow(None, np.arange(4), 2, [("s",), ()])

    assert all(first is second for first, second in zip(one, same, strict=True))
    assert len({id(prefix) for prefix in one + salted}) == 4
    assert one[1].before is one[0]


def test_a_prefix_that_nobody_needs_is_forgotten() -> None:
    """A prefix lives as long as somebody holds it, or one that goes on from it."""
    prefixes = Prefixes(block_hash("sha256", "0"))
    *_, last = prefixes.follow(None, np.arange(6), 2, [(), (), ()])
    assert len(prefixes) == 3

    del last, _
    assert len(prefixes) == 0


class Constant:
    """A hash that finds everything equal."""

    def __call__(self, seed: str) -> BlockHash:
        """Return it as a fast hash."""
        return BlockHash(bytes(16), lambda *_: b"always this one", is_exact=False)


def test_equal_fast_hashes_are_told_apart_by_their_tokens() -> None:
    """If every digest is the same, prefixes are equal exactly when tokens and keys are."""
    prefixes = Prefixes(Constant()(""))
    found: dict[tuple[object, ...], Prefix] = {}
    kept = []
    for tokens in product([1, 2], repeat=4):
        for keys in product([(), ("s",)], repeat=2):
            first, second = prefixes.follow(None, np.array(tokens), 2, keys)
            kept += [first, second]
            assert found.setdefault((tokens[:2], keys[0]), first) is first
            assert found.setdefault((tokens, keys), second) is second

    assert len({id(prefix) for prefix in kept}) == len(found) == len(prefixes)


def test_a_forced_collision_never_shares(monkeypatch: pytest.MonkeyPatch, new_loop: Any) -> None:
    """With a constant hash, a request hits its own prefix and no other, though all hashes agree."""
    monkeypatch.setitem(ALGORITHMS, "xxh3", Constant())
    loop = new_loop(enable_prefix_caching=True, prefix_caching_hash_algo="xxh3")
    loop.add("owner", [1, 2, 3, 4, 5], 1)
    loop.run()

    expected = {(1, 2, 3, 4, 9): 4, (1, 2, 9, 9, 9): 2, (3, 4, 1, 2, 9): 0, (9, 9, 3, 4, 9): 0}
    for number, (prompt, hits) in enumerate(expected.items()):
        loop.add(f"other-{number}", prompt, 1)
        output = loop.step()
        assert output.computed.tolist() == [hits], prompt


@pytest.mark.parametrize("name", ALGORITHMS)
def test_nothing_is_hashed_in_a_step(
    monkeypatch: pytest.MonkeyPatch, new_loop: Any, name: str
) -> None:
    """Hashes are made when tokens arrive or are sampled; `schedule` makes none."""
    calls: list[int] = []
    original = ALGORITHMS[name]
    monkeypatch.setitem(ALGORITHMS, name, counting(original, calls))
    loop = new_loop(enable_prefix_caching=True, prefix_caching_hash_algo=name)
    loop.add("a", 9, 7)
    loop.add("b", 9, 7)
    assert len(calls) == 8

    while loop.scheduler.has_unfinished_requests():
        before = len(calls)
        output = loop.scheduler.schedule()
        assert len(calls) == before
        loop.finish_step(output)
    assert len(calls) == 16


def hashes_told(new_loop: Any, seed: str) -> list[bytes]:
    """Return the hashes that a scheduler of its own tells its listeners."""
    loop = new_loop(enable_prefix_caching=True, hash_seed=seed)
    loop.scheduler.take_events()
    loop.add("a", [1, 2, 3, 4, 5], 1)
    loop.step()
    return [h for event in loop.scheduler.take_events() for h in event["block_hashes"]]


def test_schedulers_agree_on_hashes_if_they_have_one_seed(new_loop: Any) -> None:
    """What one scheduler tells, another one with the same seed finds, and one without does not."""
    assert hashes_told(new_loop, "a") == hashes_told(new_loop, "a")
    assert set(hashes_told(new_loop, "a")).isdisjoint(hashes_told(new_loop, "b"))


def counting(make: Callable[[str], BlockHash], calls: list[int]) -> Callable[[str], BlockHash]:
    """Return an algorithm that notes each of its calls."""

    def made(seed: str) -> BlockHash:
        algorithm = make(seed)

        def digest(before: bytes, tokens: bytes, keys: Keys) -> bytes:
            calls.append(len(tokens))
            return algorithm.digest(before, tokens, keys)

        return BlockHash(algorithm.root, digest, algorithm.is_exact)

    return made


@pytest.mark.parametrize(("name", "package"), [("xxh3", "xxhash"), ("sha256_cbor", "cbor2")])
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, new_loop: Any, name: str, package: str
) -> None:
    """Without its package, an algorithm says which one it needs and how to get it."""
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(CallerError, match=rf"{name}.*{package}.*kvproof\[hash\]"):
        new_loop(enable_prefix_caching=True, prefix_caching_hash_algo=name)


def test_an_unknown_algorithm_is_refused(new_loop: Any) -> None:
    """A name that is no algorithm is refused with those that are."""
    with pytest.raises(CallerError, match="'md5'; expected one of sha256, xxh3, sha256_cbor"):
        new_loop(prefix_caching_hash_algo="md5")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_numbers_are_never_used_again(name: str) -> None:
    """The core knows each prefix by a number that no other prefix ever had."""
    prefixes = Prefixes(block_hash(name, "0"))
    numbers = [prefixes.follow(None, np.array([token]), 1, [()])[0].number for token in range(9)]

    assert all(earlier < later for earlier, later in pairwise(numbers))
