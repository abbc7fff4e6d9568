"""The tensors kept from step to step are those that would be built anew, at fixed addresses."""

from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.functional import pad

from kvproof.runtime import Request, Scheduler, SchedulerConfig, StepOutput, StepTensors
from kvproof.runtime.step_tensors import Chunk
from kvproof.verify import workload
from kvproof.verify.victim_rule import VictimRule

NAMES = (
    "input_ids",
    "positions",
    "slot_mapping",
    "query_start_loc",
    "seq_lens",
    "logits_indices",
    "kv_indptr",
    "kv_indices",
    "kv_last_page_len",
)
BUFFERS = (*NAMES[:6], "block_table")

# What happens in a round: requests that come, one that is aborted and whether that is in flight,
# and whether the tensors are looked at.
Round = tuple[list[workload.Draft], tuple[int, bool] | None, bool]
rounds = st.lists(
    st.tuples(
        st.just([]) | workload.drafts,
        st.none() | st.none() | st.tuples(st.integers(0, 7), st.booleans()),
        st.sampled_from((True, True, False)),
    ),
    min_size=8,
    max_size=40,
)


def run(
    config: SchedulerConfig, victim: VictimRule, plan: list[Round]
) -> Iterator[tuple[StepOutput, StepTensors]]:
    """Yield each step whose tensors are to be looked at, with those built anew."""
    scheduler, number = Scheduler(config, choose_victim=victim), 0
    for drafts, abort, look in plan:
        for draft in drafts:
            number += 1
            request = workload.fitting_request(config, f"r{number}", number, draft)
            scheduler.add_request(request)
        output = scheduler.schedule()
        expected = from_chunks(scheduler, output) if output.num_requests else None
        if abort and abort[1]:
            scheduler.abort(f"r{number - abort[0]}")
        if look and expected is not None:
            yield output, expected
        scheduler.update(output, [number % 11] * len(output.sampled_req_ids))
        if abort and not abort[1]:
            scheduler.abort(f"r{number - abort[0]}")


def from_chunks(scheduler: Scheduler, output: StepOutput) -> StepTensors:
    """Return the tensors of a step, built the plain way from what the scheduler tells."""
    chunks: list[Chunk] = []
    logits: list[int] = []
    ends = 0
    drafts = output.scheduled_spec_decode_tokens
    for name, start in zip(output.req_ids, output.computed.tolist(), strict=True):
        tried = drafts.get(name, [])
        known = [*scheduler.token_ids(name), *tried]
        tokens = known[start : start + output.num_scheduled_tokens[name]]
        ends += len(tokens)
        samples = name in output.sampled_req_ids
        logits += range(ends - len(tried) - 1, ends) if samples else []
        chunks.append(Chunk(tokens, scheduler.block_ids(name), start, samples))
    tensors = StepTensors.from_chunks(chunks, scheduler.config.block_size)
    return attrs.evolve(tensors, logits_indices=torch.tensor(logits, dtype=torch.int64))


def assert_same(seen: StepTensors, expected: StepTensors) -> None:
    """Compare every field; tables may be padded to another width."""
    for name in NAMES:
        assert torch.equal(getattr(seen, name).cpu(), getattr(expected, name)), name
    width = seen.block_table.shape[1]
    table = pad(expected.block_table, (0, width))[:, :width]
    assert torch.equal(seen.block_table.cpu(), table)
    for name in ("block_size", "max_query_len", "max_seq_len"):
        assert getattr(seen, name) == getattr(expected, name), name


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=workload.configurations, victim=workload.victims, plan=rounds)
def test_tensors_are_those_built_anew(
    device: torch.device,
    config: SchedulerConfig,
    victim: VictimRule,
    plan: list[Round],
) -> None:
    """Whatever came before, preemptions, reused rows and steps without tensors, they are equal."""
    for output, expected in run(config, victim, plan):
        tensors = output.to_tensors(device)
        tensors.check()
        assert_same(tensors, expected)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=workload.configurations, victim=workload.victims, plan=rounds)
def test_addresses_never_change(
    device: torch.device,
    config: SchedulerConfig,
    victim: VictimRule,
    plan: list[Round],
) -> None:
    """Each buffer begins at one address for good, as a captured graph needs it."""
    addresses = set()
    for output, _ in run(config, victim, plan):
        tensors = output.to_tensors(device)
        # A view of no entries has no address.
        addresses |= {
            (name, getattr(tensors, name).data_ptr())
            for name in BUFFERS
            if getattr(tensors, name).numel()
        }
    assert len(addresses) == len({name for name, _ in addresses})


def small(*requests: Request, **limits: int) -> Scheduler:
    """Return a scheduler whose blocks hold two tokens, and requests that wait."""
    usual: dict[str, Any] = {
        "num_blocks": 20,
        "block_size": 2,
        "max_num_batched_tokens": 8,
        "max_num_seqs": 3,
    }
    scheduler = Scheduler(SchedulerConfig(**(usual | limits)), debug=True)
    for request in requests:
        scheduler.add_request(request)
    return scheduler


def test_mixed_step_by_hand(device: torch.device) -> None:
    """A decode and a chunk side by side have the tensors that one writes down for them."""
    scheduler = small(Request("a", [10, 11, 12], 5))
    scheduler.update(scheduler.schedule(), [13])
    scheduler.add_request(Request("b", [20, 21, 22], 5))
    tensors = scheduler.schedule().to_tensors(device)

    assert tensors.input_ids.tolist() == [13, 20, 21, 22]
    assert tensors.positions.tolist() == [3, 0, 1, 2]
    assert tensors.slot_mapping.tolist() == [5, 6, 7, 8]
    assert tensors.query_start_loc.tolist() == [0, 1, 4]
    assert tensors.seq_lens.tolist() == [4, 3]
    assert tensors.block_table.tolist() == [[1, 2], [3, 4]]
    assert tensors.logits_indices.tolist() == [0, 3]
    assert tensors.kv_indptr.tolist() == [0, 2, 4]
    assert tensors.kv_indices.tolist() == [1, 2, 3, 4]
    assert tensors.kv_last_page_len.tolist() == [2, 1]
    assert (tensors.max_query_len, tensors.max_seq_len, tensors.block_size) == (3, 4, 2)


def test_shorter_table_leaves_nothing_of_the_one_before(device: torch.device) -> None:
    """Behind a table stands the null block, also where a longer one has been."""
    scheduler = small(Request("a", range(8), 1))
    output = scheduler.schedule()
    assert output.to_tensors(device).block_table.tolist() == [[1, 2, 3, 4]]
    scheduler.update(output, [0])
    scheduler.add_request(Request("b", [1], 5))
    scheduler.add_request(Request("c", range(7), 5))
    tensors = scheduler.schedule().to_tensors(device)

    assert tensors.block_table[0, 1:].tolist() == [0, 0, 0]


def test_step_can_be_asked_for_twice(device: torch.device) -> None:
    """Asking again for the tensors of the step in flight changes nothing."""
    output = small(Request("a", [1, 2, 3], 5)).schedule()

    first = {name: getattr(output.to_tensors(device), name).clone() for name in BUFFERS}
    second = output.to_tensors(device)
    assert all(torch.equal(first[name], getattr(second, name)) for name in BUFFERS)


@pytest.mark.parametrize("asked_before", [False, True])
def test_abort_in_flight_leaves_the_tensors_as_they_were(
    device: torch.device, asked_before: bool
) -> None:
    """A step keeps its tables when its requests are aborted and others come, asked for or not."""
    scheduler = small(Request("a", [10, 11], 5), Request("b", [20, 21, 22], 5))
    output = scheduler.schedule()
    expected = from_chunks(scheduler, output)
    if asked_before:
        output.to_tensors(device)
    scheduler.abort(["a", "b"])
    scheduler.add_request(Request("a2", [30, 31], 5))

    assert_same(output.to_tensors(device), expected)
