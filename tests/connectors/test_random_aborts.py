"""Aborts at random moments with the folder connector: nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.verify.abort_trials import NUM_BLOCKS, AbortTrials, WrongContentError

ABORTS = 150


@pytest.mark.parametrize("faults", [0, 8], ids="{0} % faults".format)
@pytest.mark.parametrize("steps", [1, 2])
def test_whoever_is_aborted_leaves_nothing_behind(
    steps: int, faults: int, tmp_path: Path, no_new_threads: None
) -> None:
    """After aborts in every state all blocks are back, all files whole and all threads gone."""
    figures = AbortTrials(tmp_path, 5, steps, faults).run(ABORTS)

    assert figures.aborts == ABORTS
    assert {"WAITING", "RUNNING", "WAITING_FOR_REMOTE_KVS"} <= figures.by_status.keys()
    assert (figures.blocks_missing, figures.files_unusable) == (0, 0)
    assert figures.blocks_loaded > 0
    assert figures.slots_compared > 0
    assert figures.files >= figures.blocks_written > 0


def test_a_wrong_slot_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If failed blocks are ignored, some request reads what nobody has written."""
    monkeypatch.setattr("kvproof.runtime.transfers.Transfers.note_failures", lambda *_: [])

    with pytest.raises(WrongContentError, match=r"block \d+: saw nan"):
        AbortTrials(tmp_path, 5, faults_percent=30).run(ABORTS)


def test_blocks_that_are_held_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The count of blocks is that of the pool, so that a leak shows."""
    trials = AbortTrials(tmp_path, 5)
    monkeypatch.setattr(AbortTrials, "_finish", lambda _: None)

    assert 0 < trials.run(1).blocks_missing < NUM_BLOCKS
