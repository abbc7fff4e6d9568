"""The watchdog: a freeze is told in the step in which it begins, once, and nothing else is one."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kvproof.runtime import BrokenInvariant, Explanation, Frozen, Profile, Request, Scheduler
from kvproof.runtime import SchedulerConfig as Config
from kvproof.runtime.connector import TransferReport
from kvproof.verify.recorded_connector import RecordedConnector, RemoteKV

SMALL: Any = {"num_blocks": 9, "block_size": 2, "max_model_len": 64}


def nobody_is_admitted(patch: pytest.MonkeyPatch) -> None:
    """Plant a freeze: the pass over the waiting requests does nothing."""
    patch.setattr("kvproof.runtime.scheduler.schedule_waiting", lambda books, plan: None)


def test_a_planted_freeze_is_raised_in_debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the requests; the step is not in flight, and the scheduler can still be used."""
    scheduler = Scheduler(Config(**SMALL), debug=True)
    scheduler.add_request(Request("gone", (1, 2), 3))
    scheduler.abort("gone")
    scheduler.add_request(Request("a", (1, 2, 3), 3))
    with monkeypatch.context() as patch:
        nobody_is_admitted(patch)
        with pytest.raises(Frozen, match=r"(?s)a step changed nothing.*\na \(WAITING") as found:
            scheduler.schedule()

    assert isinstance(found.value, BrokenInvariant)
    assert scheduler.statistics().num_freezes == 1
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 3}
    assert output.finished_req_ids == {"gone"}, "workers are told though a step was given up"
    assert not scheduler.statistics().is_frozen


def test_a_freeze_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In production it is counted and logged when it begins, and again only after it has ended."""
    scheduler = Scheduler(Config(**SMALL))
    scheduler.add_request(Request("a", (1, 2, 3), 3))
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        nobody_is_admitted(patch)
        for _ in range(3):
            scheduler.update(scheduler.schedule(), {})

    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "a (WAITING, place 1 of waiting)" in caplog.text
    statistics = scheduler.statistics()
    assert (statistics.num_freezes, statistics.is_frozen) == (1, True)
    scheduler.update(scheduler.schedule(), {"a": 0})
    assert (scheduler.statistics().num_freezes, scheduler.statistics().is_frozen) == (1, False)
    scheduler.add_request(Request("b", (1, 2, 3), 3))
    scheduler.abort("a")
    nobody_is_admitted(monkeypatch)
    scheduler.update(scheduler.schedule(), {})
    assert scheduler.statistics().num_freezes == 2


@pytest.mark.rule("vllm#39734")
@pytest.mark.parametrize("debug", [False, True])
def test_a_handler_takes_the_place_of_both(debug: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever handles freezes gets an explanation of each request, and the run goes on."""
    seen: list[list[Explanation]] = []
    config = Config(**SMALL, profile=Profile.vllm_0_25_1())
    scheduler = Scheduler(config, on_freeze=lambda found: seen.append(list(found)))
    scheduler._watchdog._raises = debug
    scheduler.add_request(Request("giant", tuple(range(20)), 3))
    for _ in range(3):
        scheduler.update(scheduler.schedule(), {})

    assert [[e.request_id for e in found] for found in seen] == [["giant"]]
    assert seen[0][0].is_frozen
    assert seen[0][0] == scheduler.explain("giant")
    assert caplog.text == ""


def test_waiting_for_something_is_no_freeze(new_loop: Any) -> None:
    """Empty steps are none while a step is in flight, a caller is awaited, or nobody is there."""
    loop = new_loop(num_blocks=7, max_steps_in_flight=3)
    loop.step()
    loop.add("grammar", 3, needs_grammar=True)
    loop.step()
    loop.add("a", 9, 1)
    loop.add("b", 9, 1)
    flying = [loop.scheduler.schedule() for _ in range(3)]
    assert [output.num_requests for output in flying] == [1, 0, 0]
    for output in flying:
        loop.finish_step(output)

    assert loop.scheduler.statistics().num_freezes == 0


def test_a_deferred_prefill_is_no_freeze(new_loop: Any) -> None:
    """A throttled rank whose only decode waits for nothing does something in the next step."""
    loop = new_loop(max_num_seqs=2)
    loop.add("a", 2)
    loop.step()
    loop.add("b", 6)
    for _ in range(3):
        loop.step(throttle=True)

    assert loop.scheduler.statistics().num_freezes == 0


def test_transfers_and_answers_are_no_freeze() -> None:
    """Nobody is frozen while a load, a send or an answer of the connector is to come."""
    entries = {
        "asked": RemoteKV(tokens=2, unknown=3),
        "loaded": RemoteKV(tokens=4),
        "sent": RemoteKV(send_delay=5),
        "late": RemoteKV(),
    }
    scheduler = Scheduler(Config(**SMALL), connector=RecordedConnector(entries), debug=True)

    def step(**report: Any) -> None:
        output = scheduler.schedule()
        samples = dict.fromkeys(output.sampled_req_ids, 0)
        scheduler.update(output, samples, TransferReport(**report))

    scheduler.add_request(Request("sent", (1, 2, 3, 4, 5, 6, 7, 8), 1))
    step()
    scheduler.add_request(Request("late", tuple(range(20, 34)), 1))
    step()
    step(sent=["sent"])
    step()
    scheduler.add_request(Request("asked", (1, 2, 3), 1))
    for _ in range(6):
        step()
    step(received=["asked"])
    step()
    scheduler.add_request(Request("loaded", (1, 2, 3, 4, 5), 1))
    for _ in range(3):
        step()
    step(received=["loaded"])
    step()

    assert not scheduler.has_work()
    assert scheduler.statistics().num_freezes == 0
