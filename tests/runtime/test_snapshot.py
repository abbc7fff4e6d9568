"""A scheduler that goes back to a snapshot goes on as if nothing had happened since."""

import random

import numpy as np
import pytest

from kvproof.runtime import CallerError, Request, Scheduler, SchedulerConfig
from kvproof.runtime.connector import TransferReport
from kvproof.verify.explorer.scripted_connector import AnsweringConnector


def run(scheduler: Scheduler, connector: AnsweringConnector, seed: int, turns: int) -> list[object]:
    """Drive a scheduler at random, and return everything that it said."""
    draw, said = random.Random(seed), list[object]()
    for turn in range(turns):
        name = f"{seed}-{turn}"
        if draw.random() < 0.6:
            scheduler.add_request(Request(name, [1] * draw.randint(1, 7), draw.randint(1, 5)))
        connector.answers = [
            (other, draw.choice([None, 1, 0]), True) for other in scheduler.waiting_request_ids()
        ]
        output = scheduler.schedule()
        said += [output.num_scheduled_tokens, output.new_block_ids, output.preempted_req_ids]
        loading = [n for n in scheduler.skipped_request_ids() if draw.random() < 0.7]
        failed = [scheduler.block_ids(n)[0] for n in loading if scheduler.block_ids(n)][:1]
        report = TransferReport(received=loading, failed_blocks=failed)
        tokens = {n: draw.randint(5, 9) for n in output.sampled_req_ids}
        said += [list(scheduler.update(output, tokens, report)), scheduler.free_block_ids()]
        if draw.random() < 0.1:
            said.append(scheduler.abort(scheduler.running_request_ids()[:1]))
    return said


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("caching", [False, True])
def test_goes_on_the_same_way(policy: str, caching: bool) -> None:
    """After going back, the same calls get the same answers, block ids included."""
    connector = AnsweringConnector()
    config = SchedulerConfig(
        num_blocks=9,
        block_size=2,
        max_num_seqs=3,
        max_model_len=16,
        policy=policy,
        enable_prefix_caching=caching,
    )
    scheduler = Scheduler(config, connector=connector, debug=True)
    run(scheduler, connector, seed=1, turns=40)
    kept = scheduler.snapshot()
    first = run(scheduler, connector, seed=2, turns=60)
    scheduler.restore(kept)
    assert run(scheduler, connector, seed=2, turns=60) == first
    scheduler.restore(kept)
    assert run(scheduler, connector, seed=3, turns=60) != first


def test_goes_back_from_where_there_are_more_requests() -> None:
    """A snapshot is good although room for more requests has been made since."""
    scheduler = Scheduler(SchedulerConfig(num_blocks=9, max_num_seqs=2), debug=True)
    scheduler.add_request(Request("first", [1, 2, 3], max_tokens=2))
    kept = scheduler.snapshot()
    for number in range(70):
        scheduler.add_request(Request(f"later-{number}", [1, 2], max_tokens=2))
    many = scheduler.snapshot()
    scheduler.restore(kept)
    scheduler.check()
    assert scheduler.waiting_request_ids() == ["first"]
    scheduler.restore(many)
    scheduler.check()
    assert len(scheduler.waiting_request_ids()) == 71
    while scheduler.has_unfinished_requests():
        output = scheduler.schedule()
        scheduler.update(output, [7] * len(output.sampled_req_ids))


def test_tensors_are_those_of_the_step_after_going_back() -> None:
    """The buffers hold nothing of what has been undone."""
    scheduler = Scheduler(SchedulerConfig(num_blocks=9, block_size=2, max_num_seqs=2))
    scheduler.add_request(Request("a", [1, 2, 3], max_tokens=3))
    scheduler.update(scheduler.schedule(), [4])
    kept = scheduler.snapshot()
    expected = scheduler.schedule().to_tensors().block_table.tolist()
    scheduler.restore(kept)
    scheduler.abort("a")
    scheduler.add_request(Request("b", [9] * 7, max_tokens=1))
    scheduler.schedule().to_tensors()
    scheduler.restore(kept)
    tensors = scheduler.schedule().to_tensors()
    assert tensors.block_table.tolist() == expected
    assert np.array_equal(tensors.input_ids.numpy(), [4])


def test_refuses_an_encoder_cache() -> None:
    """What a snapshot does not hold is refused, not forgotten."""
    config = SchedulerConfig(num_blocks=9, encoder_cache_size=4, max_num_encoder_input_tokens=4)
    with pytest.raises(CallerError, match="encoder"):
        Scheduler(config).snapshot()
