"""Every refusal names what was seen and what was expected, and changes nothing at all."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

from kvproof.runtime import (
    CallerError,
    KVPool,
    Request,
    RequestOutput,
    RequestRefused,
    Scheduler,
    SchedulerConfig,
    StepOrderError,
    StepOutput,
)
from kvproof.runtime.running_view import RunningView

Advance = Callable[..., tuple[StepOutput, list[RequestOutput]]]
Unchanged = Callable[..., AbstractContextManager[None]]

CONFIG = SchedulerConfig(num_blocks=7, block_size=2, max_model_len=10)
anything: Any = Request  # so that what no type checker lets pass can be asked for
STEP_NUMBERS = ("step.issued", "step.processed", "step.budget_left")


@pytest.fixture
def scheduler(advance: Advance) -> Scheduler:
    """Return a scheduler with a request that runs, one that waits, and one that has left."""
    scheduler = Scheduler(SchedulerConfig(num_blocks=7, block_size=2, max_model_len=10), debug=True)
    scheduler.add_request(Request("gone", [1], 1))
    scheduler.add_request(Request("runs", [1, 2, 3], 4, {4, 5}))
    advance(scheduler, 6)
    scheduler.add_request(Request("waits", [1, 2], 4))
    return scheduler


# --- Requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (anything("new", []), "the prompt is empty; expected at least one token"),
        (anything("new", [1], 0), "max_tokens is 0; expected 1 or more"),
        (anything("new", [1], -3), "max_tokens is -3; expected 1 or more"),
        (anything("new", [1], 1.5), "max_tokens is 1.5"),
        (anything("new", [1], None), "max_tokens is None"),
        (anything("new", [1, 2.5], 1), "saw the token 2.5; expected whole numbers from 0"),
        (anything("new", "text", 1), "saw the token 't'"),
        (anything("new", [1, None], 1), "saw the token None"),
        (anything("new", [1, -1], 1), "saw the token -1"),
        (anything("new", [2**63], 1), "saw the token 9223372036854775808"),
        (anything("new", [1], 1, ["x"]), "saw the stop token 'x'"),
        (anything("new", [1], 1, [2**63]), "saw the stop token 9223372036854775808"),
        (anything("new", [1], 1, [3, -1]), "saw the stop token -1"),
        (anything("", [1], 1), "the id must be a string that is not empty"),
        (anything(7, [1], 1), "request 7: the id must be a string"),
        (anything("new", range(10), 1), "has 10 tokens .* max_model_len is 10; shorten"),
        (anything("new", range(11), 1), "has 11 tokens .* max_model_len is 10; shorten"),
        (anything("runs", [1], 1), "'runs': the id is in use by a live request"),
        (anything("waits", [1], 1), "'waits': the id is in use by a live request"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_malformed_request_is_refused(
    scheduler: Scheduler, unchanged: Unchanged, request_: Request, words: str
) -> None:
    """A request that makes no sense is refused with what was seen."""
    with unchanged(scheduler), pytest.raises(RequestRefused, match=words):
        scheduler.add_request(request_)


@pytest.mark.rule("vllm#39734")
def test_request_that_can_never_fit_is_refused(unchanged: Unchanged) -> None:
    """The refusal shows the arithmetic; one token less is taken, since the last needs no slot."""
    scheduler = Scheduler(SchedulerConfig(num_blocks=4, block_size=2), debug=True)
    words = r"7 tokens need 4 blocks of 2, but the pool has 3; lower max_tokens or enlarge the pool"
    with unchanged(scheduler), pytest.raises(RequestRefused, match=words):
        scheduler.add_request(Request("a", range(5), 3))

    scheduler.add_request(Request("a", range(5), 2))


def test_length_of_the_model_counts_for_what_can_fit() -> None:
    """A request that max_model_len cuts to what fits is taken, whatever it asks for."""
    scheduler = Scheduler(SchedulerConfig(num_blocks=4, block_size=2, max_model_len=7), debug=True)
    scheduler.add_request(Request("a", range(5), 1_000_000))

    assert scheduler.has_unfinished_requests()


@pytest.mark.rule("vllm#15326")
def test_id_of_an_aborted_request_is_in_use_while_its_frame_flies(
    scheduler: Scheduler, unchanged: Unchanged
) -> None:
    """An id is free again when nothing in flight knows it any more."""
    output = scheduler.schedule()
    scheduler.abort("runs")
    with unchanged(scheduler), pytest.raises(RequestRefused, match="in use"):
        scheduler.add_request(Request("runs", [1], 1))

    scheduler.update(output, [0] * len(output.sampled_req_ids))
    scheduler.add_request(Request("runs", [1], 1))


# --- Steps ----------------------------------------------------------------------------------------


def test_second_schedule_is_refused(scheduler: Scheduler, unchanged: Unchanged) -> None:
    """A step is scheduled only when the one before has been accounted for."""
    output = scheduler.schedule()
    with (
        unchanged(scheduler),
        pytest.raises(StepOrderError, match=r"step 2 is in flight; .* update\(\) first"),
    ):
        scheduler.schedule()

    scheduler.update(output, [0, 0])


def test_samples_without_a_step_are_refused(
    scheduler: Scheduler, unchanged: Unchanged, advance: Advance
) -> None:
    """A step is accounted for once."""
    output, _ = advance(scheduler)
    with (
        unchanged(scheduler),
        pytest.raises(StepOrderError, match="samples of step 2, awaited: none; each step once"),
    ):
        scheduler.update(output, [0, 0])


def test_samples_of_another_step_are_refused(
    scheduler: Scheduler, unchanged: Unchanged, advance: Advance
) -> None:
    """An earlier step, or that of another scheduler with the same number, is not the awaited."""
    earlier, _ = advance(scheduler)
    other = Scheduler(CONFIG, debug=True)
    stranger = [advance(other)[0] for _ in range(3)][-1]
    awaited = scheduler.schedule()
    assert stranger.step == awaited.step
    for output in (earlier, stranger):
        with (
            unchanged(scheduler),
            pytest.raises(StepOrderError, match=f"of step {output.step}, awaited: 3"),
        ):
            scheduler.update(output, [0, 0])


@pytest.mark.parametrize(
    ("sampled", "words"),
    [
        ([1], "step 2: saw 1 sampled tokens, expected 2"),
        ([1, 2, 3], "step 2: saw 3 sampled tokens, expected 2"),
        ([], "step 2: saw 0 sampled tokens, expected 2"),
        ([[1, 2], [3, 4]], "step 2: saw 4 sampled tokens, expected 2"),
        ([1.0, 2.0], "step 2: saw float64 for sampled tokens; expected whole numbers"),
        ([True, False], "saw bool for sampled tokens"),
        (["a", "b"], "for sampled tokens; expected whole numbers"),
        ([None, 1], "saw object for sampled tokens"),
        ([2**64, 1], "saw object for sampled tokens"),
        ({"runs": 1}, r"step 2: no token for \['waits'\], tokens for \[\]"),
        ({"runs": 1, "wait": 2}, r"no token for \['waits'\], tokens for \['wait'\]"),
        ({"runs": 1, "waits": 2, "gone": 3}, r"no token for \[\], tokens for \['gone'\]"),
        ({"runs": 1, "waits": 2.5}, "saw float64 for sampled tokens"),
    ],
    ids=str,
)
def test_wrong_samples_are_refused(
    scheduler: Scheduler, unchanged: Unchanged, sampled: Any, words: str
) -> None:
    """Too few, too many, unknown, missing and broken samples leave the step in flight."""
    output = scheduler.schedule()
    with unchanged(scheduler), pytest.raises(StepOrderError, match=words):
        scheduler.update(output, sampled)

    scheduler.update(output, {"runs": 1, "waits": 2})
    assert scheduler.token_ids("waits") == [1, 2, 2]


def test_tensors_of_a_past_step_are_refused(
    scheduler: Scheduler, unchanged: Unchanged, advance: Advance
) -> None:
    """Buffers hold the step in flight and no other."""
    output, _ = advance(scheduler)
    with unchanged(scheduler), pytest.raises(StepOrderError, match="step 2 is not in flight"):
        output.to_tensors()
    scheduler.schedule()
    with unchanged(scheduler), pytest.raises(StepOrderError, match="step 2 is not in flight"):
        output.to_tensors()


def test_tensors_of_an_empty_step_are_refused(unchanged: Unchanged) -> None:
    """A step that computes nothing has no tensors."""
    scheduler = Scheduler(CONFIG, debug=True)
    output = scheduler.schedule()
    with unchanged(scheduler), pytest.raises(StepOrderError, match="step 1 computes nothing"):
        output.to_tensors()


# --- Configurations and pools ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("num_blocks", 2),
        ("block_size", 1),
        ("max_num_seqs", 1),
        ("max_num_batched_tokens", 1),
        ("max_model_len", 2),
        ("long_prefill_token_threshold", 0),
    ],
)
@pytest.mark.parametrize("value", [None, -1, 1.5, "8"])
def test_bad_limit_is_refused(name: str, least: int, value: Any) -> None:
    """A limit below its least, or no whole number, is named with what was seen and expected."""
    limits: dict[str, Any] = {"num_blocks": 4}
    words = f"{name} is {value!r}; expected a whole number of at least {least}"
    with pytest.raises(CallerError, match=words):
        SchedulerConfig(**(limits | {name: value}))
    with pytest.raises(CallerError, match=f"at least {least}"):
        SchedulerConfig(**(limits | {name: least - 1}))

    assert getattr(SchedulerConfig(**(limits | {name: least})), name) == least


def test_pool_larger_than_memory_is_refused() -> None:
    """A pool that cannot be had is refused before anything is allocated."""
    with pytest.raises(MemoryError):
        KVPool(num_layers=64, num_blocks=10**9, num_kv_heads=64, head_dim=128)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(6, 2), (8, 2), (7, 4)])
def test_pool_of_another_size_is_refused(num_blocks: int, block_size: int) -> None:
    """A scheduler takes only the pool that it is configured for."""
    pool = KVPool(1, num_blocks, 1, 1, block_size)
    words = f"the pool has {num_blocks} blocks of {block_size}, expected 7 of 2"
    with pytest.raises(CallerError, match=words):
        Scheduler(CONFIG, kv_pool=pool)


def test_pool_without_debugging_is_refused_in_debug_mode() -> None:
    """Debug mode needs a pool whose freed blocks can be filled with NaN."""
    with pytest.raises(CallerError, match="make the pool with debug=True too"):
        Scheduler(CONFIG, kv_pool=KVPool(1, 7, 1, 1, 2), debug=True)


# --- Victim policies ------------------------------------------------------------------------------


def crowded(
    advance: Advance, answers: list[Any], names: str = "abw", usable: int = 2
) -> tuple[Scheduler, list[Any]]:
    """Return a scheduler whose next step needs a victim, and the answers its policy will give.

    A block holds one token; the last of the named requests waits.
    """

    def answer(running: RunningView) -> int:
        chosen = answers.pop(0) if answers else running.rows[-1]
        if isinstance(chosen, Exception):
            raise chosen
        return chosen  # type: ignore[no-any-return]

    config = SchedulerConfig(num_blocks=usable + 1, block_size=1, max_num_seqs=len(names) - 1)
    scheduler = Scheduler(config, choose_victim=answer, debug=True)
    for name in names:
        scheduler.add_request(Request(name, [1], 2))
    advance(scheduler)
    return scheduler, answers


@pytest.mark.parametrize(
    "nonsense",
    [2, 5, 1_000_000, -1, None, 1.0, "a", [0], np.array([0, 1])],
    ids=["waits", "vacant", "no row", "negative", "None", "float", "id", "list", "array"],
)
def test_victim_that_does_not_run_is_refused(
    advance: Advance, unchanged: Unchanged, nonsense: Any
) -> None:
    """Nobody is preempted for a policy's mistake; only the step's number has been used up."""
    scheduler, _ = crowded(advance, [nonsense])
    words = r"choose_victim returned .*; expected one of the running rows \[0, 1\]"
    with unchanged(scheduler, but=STEP_NUMBERS), pytest.raises(CallerError, match=words):
        scheduler.schedule()

    output, _ = advance(scheduler)
    assert output.preempted_req_ids == {"b"}


def test_exception_of_a_policy_passes_through(advance: Advance, unchanged: Unchanged) -> None:
    """What a policy raises reaches the caller as it is, and the next step can be scheduled."""
    scheduler, _ = crowded(advance, [ZeroDivisionError("mine")])
    with (
        unchanged(scheduler, but=STEP_NUMBERS),
        pytest.raises(ZeroDivisionError, match="mine"),
    ):
        scheduler.schedule()

    assert advance(scheduler)[0].preempted_req_ids == {"b"}


def test_step_is_given_up_whole(advance: Advance) -> None:
    """When a later choice is nonsense, nobody is in the step; earlier victims stay preempted.

    A block that had been taken stays with the request that will need it.
    """
    scheduler, _ = crowded(advance, [3, -1], names="abcdw", usable=5)
    with pytest.raises(CallerError, match=r"returned -1; expected one of the running rows"):
        scheduler.schedule()  # a takes the last block, d makes room for b, c gets nothing

    scheduler.check()
    assert scheduler.statistics().num_preemptions == 1
    assert [len(scheduler.block_ids(name)) for name in "abcd"] == [2, 2, 1, 0]
    output, _ = advance(scheduler)
    assert output.num_scheduled_tokens == {"a": 1, "b": 1}
    assert output.preempted_req_ids == {"c"}
