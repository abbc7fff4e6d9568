"""The engine: a preempted request samples what it samples alone, and a stale read is loud."""

from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from kvproof.runtime import (
    BrokenInvariant,
    CallerError,
    FinishReason,
    KVPool,
    RequestRefused,
    Scheduler,
    SchedulerConfig,
    StepOutput,
    StepTensors,
)
from kvproof.runtime.engine import InferenceEngine, Model, NotANumberError, generate, load_model
from kvproof.runtime.engine.content_keys import ContentKeys
from kvproof.runtime.kv_pool import StaleRead
from kvproof.runtime.step_buffers import StepBuffers

PROMPTS = [
    [(37 * number + 5 * place) % 256 for place in range(2 + 3 * number)] for number in range(7)
]
MAX_TOKENS = 16
LONGEST = len(PROMPTS[-1]) + MAX_TOKENS - 1


def build(model: Model, slots: int, block_size: int = 4, **limits: Any) -> InferenceEngine:
    """Return an engine in debug mode whose pool has room for about that many tokens."""
    config = SchedulerConfig(
        num_blocks=1 + -(-slots // block_size), block_size=block_size, max_model_len=256, **limits
    )
    return InferenceEngine.build(model, config, debug=True)


def add_all(engine: InferenceEngine, temperature: float = 0.0, seed: int = 0) -> None:
    """Queue every prompt, each with a seed of its own."""
    for number, prompt in enumerate(PROMPTS):
        engine.add(prompt, MAX_TOKENS, temperature=temperature, seed=seed + number, ignore_eos=True)


def alone(model: Model, temperature: float = 0.0, seed: int = 0) -> dict[str, list[int]]:
    """Return what each prompt gives when nothing is scheduled."""
    return {
        f"request-{number}": generate(
            model, prompt, MAX_TOKENS, temperature=temperature, seed=seed + number, ignore_eos=True
        )
        for number, prompt in enumerate(PROMPTS)
    }


# --- Equality -------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 2.0])
@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_num_batched_tokens": 9},
        {"long_prefill_token_threshold": 5},
        {"max_num_batched_tokens": 24, "max_num_seqs": 3},
    ],
    ids=str,
)
def test_preempted_requests_sample_what_they_sample_alone(
    block_size: int, limits: dict[str, int], temperature: float
) -> None:
    """Whatever the blocks, chunks and temperature, a run with preemptions changes no token."""
    for seed in range(2):
        model = load_model(seed=seed)
        engine = build(model, LONGEST + 12, block_size, **limits)
        add_all(engine, temperature, seed)

        assert engine.run() == alone(model, temperature, seed)
        assert engine.scheduler.statistics().num_preemptions > 0


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_room_makes_no_difference(device: torch.device, temperature: float) -> None:
    """A pool with room for all, one for some and one for the longest alone give the same tokens."""
    model = load_model(device=device)
    sampled, preemptions = [], []
    for slots in (1000, 100, LONGEST):
        engine = build(model, slots)
        add_all(engine, temperature)
        sampled.append(engine.run())
        preemptions.append(engine.scheduler.statistics().num_preemptions)

    assert sampled[0] == sampled[1] == sampled[2] == alone(model, temperature)
    assert preemptions[0] == 0
    assert min(preemptions[1:]) >= 3


def test_an_abort_leaves_the_others_alone() -> None:
    """Requests that go on after one is aborted sample what they sample alone."""
    model = load_model()
    engine = build(model, 1000)
    add_all(engine)
    first = {output.request_id: list(output.new_token_ids) for output in engine.step()}

    engine.scheduler.abort("request-2")
    rest = engine.run()

    expected = alone(model)
    del expected["request-2"]
    assert {name: first[name] + rest[name] for name in rest} == expected


def test_a_row_can_be_used_again() -> None:
    """Requests that come later, into rows and blocks of earlier ones, read nothing of theirs."""
    model = load_model()
    engine = build(model, LONGEST + 12)
    add_all(engine)
    engine.run()
    add_all(engine)

    again = engine.run()

    assert list(again) != list(alone(model))
    assert sorted(again.values()) == sorted(alone(model).values())


# --- The end of a request -------------------------------------------------------------------------


def test_a_request_ends_with_its_end_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end token is the last one and the reason is a stop, unless the caller ignores it."""
    model = load_model()
    text = generate(model, PROMPTS[3], 8, ignore_eos=True)
    monkeypatch.setattr(model.tokenizer, "eos_token_id", text[3])
    engine = build(model, 200)
    engine.add(PROMPTS[3], 8, request_id="stops")
    engine.add(PROMPTS[3], 8, request_id="goes on", ignore_eos=True)

    outputs = [output for _ in range(8) for output in engine.step()]

    reasons = {o.request_id: o.finish_reason for o in outputs if o.finished}
    assert reasons == {"stops": FinishReason.STOP, "goes on": FinishReason.LENGTH}
    stopped = [t for o in outputs if o.request_id == "stops" for t in o.new_token_ids]
    assert stopped == text[: text.index(text[3]) + 1]


def test_a_step_without_requests_brings_nothing() -> None:
    """Stepping an engine that has nothing to do is no mistake."""
    engine = build(load_model(), 100)

    assert engine.step() == []
    assert engine.run() == {}


def test_requests_are_numbered_unless_they_are_named() -> None:
    """The id is the caller's, or says how many requests came before."""
    engine = build(load_model(), 100)

    assert [engine.add([1], 1), engine.add([1], 1, request_id="mine"), engine.add([1], 1)] == [
        "request-0",
        "mine",
        "request-2",
    ]


# --- Debug mode -----------------------------------------------------------------------------------


def test_every_freed_block_is_poisoned() -> None:
    """When all have ended each block they took has been filled once, and nothing else is left."""
    engine = build(load_model(), 1000)
    add_all(engine)

    engine.run()

    taken = sum(-(-(len(prompt) + MAX_TOKENS - 1) // 4) for prompt in PROMPTS)
    assert engine.pool.num_blocks_poisoned == taken
    assert engine.pool.storage[1:].isnan().all()
    assert not engine.pool.storage[0].any()


def test_preempted_blocks_are_poisoned_too() -> None:
    """A small pool fills more blocks than it has, and no block that is free holds anything."""
    engine = build(load_model(), LONGEST + 12)
    add_all(engine)

    engine.run()

    assert engine.pool.num_blocks_poisoned > 2 * engine.pool.num_usable_blocks
    assert engine.pool.storage[1:].isnan().all()


def test_every_read_is_verified() -> None:
    """Without chunks, each sampled token has read every token before it, once."""
    engine = build(load_model(), LONGEST + 12)
    add_all(engine)

    engine.run()

    reads = sum(len(prompt) + past for prompt in PROMPTS for past in range(MAX_TOKENS))
    assert engine.num_slots_verified == reads


def test_without_debug_nothing_is_stamped_or_poisoned() -> None:
    """The tokens are the same, and none of the checks has run."""
    model = load_model()
    config = SchedulerConfig(num_blocks=15, block_size=4, max_model_len=256)
    engine = InferenceEngine.build(model, config)
    add_all(engine)

    assert engine.run() == alone(model)
    assert (engine.num_slots_verified, engine.pool.num_blocks_poisoned) == (0, 0)
    assert not engine.pool.debug


def half_way(model: Model) -> InferenceEngine:
    """Return an engine in whose pool several requests hold blocks that they are going to read."""
    engine = build(model, LONGEST + 40)
    add_all(engine)
    for _ in range(3):
        engine.step()
    return engine


def test_a_block_freed_too_early_is_a_stale_read(device: torch.device) -> None:
    """A block that is freed while a table still names it is found before it is read."""
    engine = half_way(load_model(device=device))
    block = engine.scheduler.block_ids("request-1")[0]
    engine.pool.poison([block])

    with pytest.raises(StaleRead, match=f"block {block}.*saw a slot that nobody has written"):
        engine.step()


def test_what_no_stamp_catches_is_not_a_number(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if owners go unchecked, a freed block is NaN, and so is every token read from it."""
    engine = half_way(load_model(device=device))
    monkeypatch.setattr(KVPool, "verify_owner", lambda *_: None)
    engine.pool.poison(engine.scheduler.block_ids("request-1")[:1])

    with pytest.raises(NotANumberError, match="row 1 is NaN"):
        engine.step()


def test_two_entries_exchanged_are_a_stale_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that names another request's block is found, with both owners."""
    engine = half_way(load_model())
    to_tensors = StepOutput.to_tensors

    def exchanged(output: StepOutput, device: torch.device | str = "cpu") -> StepTensors:
        tensors = to_tensors(output, device)
        table = tensors.block_table.clone()
        table[:2, 0] = table[:2, 0].flip(0)
        return attrs.evolve(tensors, block_table=table)

    monkeypatch.setattr(StepOutput, "to_tensors", exchanged)

    with pytest.raises(StaleRead) as caught:
        engine.step()
    mine, other = (
        ContentKeys().of(name, engine.scheduler.token_ids(name))
        for name in ("request-0", "request-1")
    )
    assert caught.value.expected_owner in set(mine) - set(other)
    assert caught.value.seen_owner in set(other) - set(mine)


def test_a_table_left_over_from_before_a_preemption_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a step that resumes somebody keeps the tables of the step before, some slot is wrong."""
    fill_block_table = StepBuffers._fill_block_table

    def forgetful(buffers: StepBuffers, output: StepOutput) -> None:
        if not output.resumed_rows:
            fill_block_table(buffers, output)

    monkeypatch.setattr(StepBuffers, "_fill_block_table", forgetful)
    engine = build(load_model(), LONGEST + 12)
    add_all(engine)

    with pytest.raises(
        (StaleRead, ValueError), match=r"was freed, reused or never|null block|two tokens"
    ):
        engine.run()


def test_a_block_that_is_held_cannot_be_taken_again() -> None:
    """A free queue that offers a held block is stopped by the core, before any memory is."""
    engine = half_way(load_model())
    held = engine.scheduler.block_ids("request-0")[0]
    engine.scheduler._books.queue.put_first([held])

    with pytest.raises(BrokenInvariant):
        engine.run()


# --- Bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"prompt_token_ids": [1, 257]}, "saw the token 257; the model has 257"),
        ({"temperature": -0.5}, "temperature is -0.5; expected 0 or more"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"seed": 2**63}, "expected a whole number of 64 bits"),
        ({"seed": 0.5}, "expected a whole number of 64 bits"),
        ({"prompt_token_ids": []}, "the prompt is empty"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": 200}, "lower max_tokens or enlarge the pool"),
        ({"request_id": "request-0"}, "in use by a live request"),
    ],
)
def test_a_refused_request_changes_nothing(wish: dict[str, Any], message: str) -> None:
    """What could fail in mid-step is refused at once, and the others go on as before."""
    model = load_model()
    engine = build(model, LONGEST + 12)
    add_all(engine)
    before = engine.scheduler.statistics()
    arguments: dict[str, Any] = {"prompt_token_ids": [1], "max_tokens": 4, **wish}

    with pytest.raises(RequestRefused, match=message):
        engine.add(**arguments)

    assert engine.scheduler.statistics() == before
    assert engine.add([1], 1) == f"request-{len(PROMPTS)}"


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"num_blocks": 9}, "the pool has 8 blocks of 4, the scheduler 9 of 4"),
        ({"block_size": 2}, "the pool has 8 blocks of 4, the scheduler 8 of 2"),
        ({"max_model_len": 4096}, "max_model_len is 4096, but the model's context is 2048"),
    ],
)
def test_parts_that_do_not_suit_each_other_are_refused(
    limits: dict[str, int], message: str
) -> None:
    """A scheduler whose limits are not the pool's or exceed the model's is refused."""
    model = load_model()
    usual: dict[str, Any] = {"num_blocks": 8, "block_size": 4, "max_model_len": 64}
    config = SchedulerConfig(**(usual | limits))

    with pytest.raises(CallerError, match=message):
        InferenceEngine(model, Scheduler(config), model.new_pool(8, 4))


def test_samples_are_drawn_by_seed_and_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each draw gets its request's temperature and seed, and the place of the token it draws."""
    engine = build(load_model(), 200)
    engine.add([1, 2, 3], 2, temperature=0.5, seed=11, ignore_eos=True)
    engine.add([1], 2, temperature=0.0, seed=12, ignore_eos=True)
    drawn: list[list[list[float]]] = []

    def record(logits: Tensor, *columns: Tensor) -> Tensor:
        drawn.append([column.tolist() for column in columns])
        return logits.argmax(dim=-1)

    monkeypatch.setattr("kvproof.runtime.engine.loop.sample", record)
    engine.run()

    assert drawn == [[[0.5, 0.0], [11, 12], [3, 1]], [[0.5, 0.0], [11, 12], [4, 2]]]
