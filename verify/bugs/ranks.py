"""Group I: ranks that do not do the same thing at the same time."""

from __future__ import annotations

from kvproof.verify.bugs.bug import Bug, Unplanted

ONE_RANK = "There is one rank: data parallelism, and property V11 with it, comes later."

BUGS: tuple[Bug, ...] = ()
UNPLANTED = (
    Unplanted("I1", ("vllm#43547", "vllm#28774", "vllm#51984", "vllm#53578"), ONE_RANK),
    Unplanted("I2", ("vllm#45223",), ONE_RANK),
    Unplanted(
        "I3", ("vllm#44483",), "The KV memory never sleeps, and no step without tokens is run."
    ),
    Unplanted("I4", ("vllm#54762",), ONE_RANK),
    Unplanted("I5", ("vllm#28224",), ONE_RANK),
)
