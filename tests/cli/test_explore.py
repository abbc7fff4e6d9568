"""`kvproof explore`: what it prints, what it returns, and how it goes on after an interrupt."""

import json
from pathlib import Path

import pytest
from attrs import evolve
from typer.testing import CliRunner, Result

from kvproof.cli.application import application
from kvproof.runtime import Profile
from kvproof.verify.explorer import Scope, Shape, checkpoint, explore, recorded_workload
from kvproof.verify.explorer.findings import Explored

TINY = ["--requests", "1", "--blocks", "2", "--jobs", "1"]


def run(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(application, ["explore", *arguments])


def test_says_what_is_covered_and_what_was_found(tmp_path: Path) -> None:
    """The bound is printed, the counts, and each fault with its program; the exit code is 1."""
    file = tmp_path / "results.json"
    result = run(*TINY, "--profile", "vllm-0.25.1", "--json", str(file))
    assert result.exit_code == 1
    assert "up to 1 requests at once, 2 blocks of 2 tokens" in " ".join(result.output.split())
    assert "from kvproof.runtime import" in result.output
    content = json.loads(file.read_text())
    assert content["is_complete"]
    assert {finding["kind"] for finding in content["findings"]} >= {"freeze"}


def test_exit_code_says_that_not_all_was_explored() -> None:
    """A bound on states that is reached is no proof: 3."""
    result = run(*TINY, "--most-states", "3")
    assert result.exit_code == 3
    assert "NOT all" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "random"], "no policy"),
        (["--json", "no/such/folder.json"], "does not exist"),
    ],
)
def test_refuses_what_it_cannot_do(arguments: list[str], message: str) -> None:
    """A mistake in the options is a usage error that says what to do."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """What was explored before an interrupt is not explored again, and the result is the same."""
    shapes = (Shape(prompt=1, max_tokens=2), Shape(prompt=2, max_tokens=1, offers=(2,)))
    scope, path = Scope(requests=2, blocks=2, shapes=shapes), tmp_path / "kept.json"
    done: list[Explored] = []

    def interrupt(part: Explored) -> None:
        done.append(part)
        if len(done) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        explore(scope, report=interrupt)
    checkpoint.write(path, scope, done)
    kept, again = checkpoint.read(path, scope), list[Explored]()
    resumed, whole = explore(scope, done=kept, report=again.append), explore(scope)
    assert kept == done
    assert len(again) == len(whole.parts) - 3
    assert resumed.findings == whole.findings
    assert (resumed.states, resumed.transitions) == (whole.states, whole.transitions)


def test_refuses_the_checkpoint_of_another_exploration(tmp_path: Path) -> None:
    """Results of other bounds are not mixed in."""
    path = tmp_path / "kept.json"
    assert run(*TINY, "--resume", str(path)).exit_code in (0, 1)
    result = run("--requests", "1", "--blocks", "3", "--resume", str(path))
    assert result.exit_code == 2
    assert "other bounds" in " ".join(result.output.split())


@pytest.mark.rule("vllm#45406", "vllm#57841")
def test_writes_freezes_as_recordings_that_end_in_the_same_way(tmp_path: Path) -> None:
    """A stranded load of the reference is a workload on which its replay is stuck, ours not."""
    shapes = (
        Shape(prompt=6, max_tokens=1, offers=(2,)),
        Shape(prompt=7, max_tokens=1, offers=(5,)),
    )
    scope = Scope(requests=2, shapes=shapes, profile=Profile.vllm_0_25_1(), offers_again=False)
    stranded, file = "WAITING_FOR_REMOTE_KVS has 7 tokens and 3 blocks", tmp_path / "stuck.jsonl"
    (finding, *_) = [f for f in explore(scope).findings if stranded in f.what]
    assert finding.kind == "freeze"
    file.write_text(recorded_workload.recorded_workload(scope, finding))
    replay = ["replay", "--outcome", str(file), "--profile"]
    stuck = CliRunner().invoke(application, [*replay, "vllm-0.25.1"])
    assert stuck.exit_code == 1
    assert "everybody ends" in " ".join(stuck.output.split())
    assert CliRunner().invoke(application, [*replay, "safe"]).exit_code == 0


def test_writes_what_can_be_written(tmp_path: Path) -> None:
    """Each freeze is written, or it is said why it cannot be."""
    result = run(*TINY, "--profile", "vllm-0.25.1", "--workloads", str(tmp_path))
    assert "no recording:" in result.output
    assert list(tmp_path.iterdir())


def test_says_what_a_recorder_cannot_be_told() -> None:
    """A livelock of loads that fail again and again needs more than one load."""
    shape = Shape(prompt=3, max_tokens=1, offers=(2,))
    profile = evolve(Profile(), repeats_failed_loads=True)
    scope = Scope(requests=1, blocks=2, shapes=(shape,), profile=profile)
    (finding, *_) = explore(scope).findings
    with pytest.raises(recorded_workload.NotSayableError, match=r"twice|after its load"):
        recorded_workload.recorded_workload(scope, finding)
