"""Hashes of full blocks, chained: a block's hash says all tokens up to its end.

Two processes with the same algorithm, seed and block size agree on every hash; nothing depends on
`PYTHONHASHSEED`. What is hashed, for "sha256" and "xxh3":

    the hash of the block before; for the first block, that of the seed in UTF-8
    the number of tokens, 4 bytes
    each token, 8 bytes
    each key of `BlockKeys`: `S`, length (4 bytes), salt in UTF-8
                         or: `I`, length (4 bytes), identifier in UTF-8, start (8 bytes)

Numbers are signed, their lowest byte first. Nothing is left out and every length is given, so that
different blocks are never encoded alike. For "sha256_cbor" it is the canonical CBOR of (hash
before, tokens, keys or null), and the hash before the first block is that of the seed as CBOR text,
which is vLLM's where `PYTHONHASHSEED` is the seed (vLLM hash_block_tokens, init_none_hash).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any

from attrs import frozen

from kvproof.runtime.block_keys import Key, Keys
from kvproof.runtime.errors import CallerError


@frozen
class BlockHash:
    """One algorithm, ready to use.

    Attributes:
        root: what stands for the block before the first.
        digest: the hash of a block, given the hash before, tokens of 8 bytes each, and keys.
        is_exact: whether equal hashes are proof enough of equal content; of a fast hash they are
            not, and the tokens are compared as well.

    """

    root: bytes
    digest: Callable[[bytes, bytes, Keys], bytes]
    is_exact: bool = True


def block_hash(name: str, seed: str) -> BlockHash:
    """Return the algorithm that a configuration names.

    Raises:
        CallerError: If it needs a package that is not installed.

    """
    return ALGORITHMS[name](seed)


def encoded(before: bytes, tokens: bytes, keys: Keys) -> bytes:
    """Return what is hashed for "sha256" and "xxh3"."""
    count = (len(tokens) // 8).to_bytes(4, "little")
    return before + count + tokens + b"".join(map(_encoded_key, keys))


def _encoded_key(key: Key) -> bytes:
    if isinstance(key, str):
        return b"S" + _with_length(key)
    identifier, start = key
    return b"I" + _with_length(identifier) + start.to_bytes(8, "little", signed=True)


def _with_length(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(4, "little") + data


def _sha256(seed: str) -> BlockHash:
    def digest(before: bytes, tokens: bytes, keys: Keys) -> bytes:
        return hashlib.sha256(encoded(before, tokens, keys)).digest()

    return BlockHash(hashlib.sha256(seed.encode()).digest(), digest)


def _xxh3(seed: str) -> BlockHash:
    try:
        from xxhash import xxh3_128_digest
    except ModuleNotFoundError as error:
        raise _missing("xxh3", "xxhash") from error

    def digest(before: bytes, tokens: bytes, keys: Keys) -> bytes:
        return xxh3_128_digest(encoded(before, tokens, keys))

    return BlockHash(xxh3_128_digest(seed.encode()), digest, is_exact=False)


def _sha256_cbor(seed: str) -> BlockHash:
    try:
        from cbor2 import dumps
    except ModuleNotFoundError as error:
        raise _missing("sha256_cbor", "cbor2") from error

    def hashed(value: Any) -> bytes:
        return hashlib.sha256(dumps(value, canonical=True)).digest()

    def digest(before: bytes, tokens: bytes, keys: Keys) -> bytes:
        numbers = struct.unpack(f"<{len(tokens) // 8}q", tokens)
        return hashed((before, numbers, keys or None))

    return BlockHash(hashed(seed), digest)


def _missing(algorithm: str, package: str) -> CallerError:
    message = (
        f"prefix_caching_hash_algo is {algorithm!r}, which needs the package {package}, and that is"
        " not installed; run pip install 'kvproof[hash]', or choose 'sha256'."
    )
    return CallerError(message)


ALGORITHMS: dict[str, Callable[[str], BlockHash]] = {
    "sha256": _sha256,
    "xxh3": _xxh3,
    "sha256_cbor": _sha256_cbor,
}
