"""Do to the scheduler of vLLM 0.25.1 what an exploration has done to ours, call by call.

    python -m tests.peers.vllm_follower CALLS.json ANSWERS.jsonl

reads what `kvproof explore --profile vllm-0.25.1 --json CALLS.json` has written, and for each
finding writes a line of JSON: what vLLM decided in each step, and, after the calls that lead there
and ROUNDS rounds of those that go on for ever, who has not ended, and who got a token or ended in a
round. Where nobody did, vLLM is stuck too. It needs vLLM and nothing of kvproof.
"""

import json
import sys
from collections import deque
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.peers.vllm_scheduler import (
    STOP_TOKEN,
    Fields,
    abort,
    block_hasher,
    build_scheduler,
    decision,
    model_folder,
    new_request,
)

ROUNDS = 10
GO_ON = 7  # any token that ends nothing


class Patient:
    """A scheduler of vLLM to which things happen as they are said."""

    def __init__(self, config: Fields, shapes: list[Fields], model: str) -> None:
        """Make a scheduler to which nobody has come yet."""
        self.config, self.scheduler = config, build_scheduler(config, model)
        self.hasher = block_hasher(config)
        self.shapes = {chr(ord("a") + place): shape for place, shape in enumerate(shapes)}
        self.connector = self.scheduler.get_kv_connector()
        self.connector.keeps = frozenset(n for n, shape in self.shapes.items() if shape["sends"])
        self.flying: deque[Any] = deque()
        self.decisions: list[Fields] = []
        self.arrived = 0

    def follow(self, kind: str, values: Fields) -> set[str]:
        """Let something happen; return who gets a token by it, or ends."""
        if kind == "Update":
            return self._update(values)
        if kind == "Arrive":
            self._arrive(values["name"])
        elif kind == "Abort":
            abort(self.scheduler, values["name"])
        else:
            self._schedule(values)
        return set()

    def _arrive(self, name: str) -> None:
        shape = self.shapes[name]
        token = ord("a" if self.config["enable_prefix_caching"] else name)
        entry = {"id": name, "prompt_token_ids": [token] * shape["prompt"], **shape}
        self.arrived += 1
        self.scheduler.add_request(new_request(entry, float(self.arrived), self.hasher))

    def _schedule(self, values: Fields) -> None:
        self.connector.answers = tuple(map(tuple, values["answers"]))
        output = self.scheduler.schedule(values["throttled"])
        self.decisions.append(decision(output))
        self.flying.append((output, self._sampling(output)))

    def _sampling(self, output: Any) -> list[str]:
        """Return who samples a token in a step: whose tokens, as vLLM counts them, end with it."""
        requests = self.scheduler.requests
        return [name for name in output.num_scheduled_tokens if not requests[name].is_prefill_chunk]

    def _update(self, values: Fields) -> set[str]:
        outputs, (output, sampling) = import_module("vllm.v1.outputs"), self.flying.popleft()
        names = list(output.num_scheduled_tokens)
        samples = {name: [STOP_TOKEN if name in values["stops"] else GO_ON] for name in sampling}
        result = outputs.ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=[samples.get(name, []) for name in names],
            kv_connector_output=self._ends(values),
        )
        brought = self.scheduler.update_from_output(output, result)
        listed = [item for engine in brought.values() for item in engine.outputs]
        return {item.request_id for item in listed if item.new_token_ids or item.finish_reason}

    def _ends(self, values: Fields) -> Any:
        """Return which transfers have ended.

        vLLM is told of a load that is lost that it has ended, and filled none of its blocks.
        """
        ended = {name for name in values["lost"] if self.scheduler.requests[name].is_finished()}
        lost = sorted(set(values["lost"]) - ended)
        failed = [self._blocks(name)[place] for name, place in values["failed"]]
        failed += [block for name in lost for block in self._loaded_blocks(name)]
        return import_module("vllm.v1.outputs").KVConnectorOutput(
            finished_recving={*values["received"], *lost} or None,
            finished_sending={*values["sent"], *ended} or None,
            invalid_block_ids=set(failed),
        )

    def _loaded_blocks(self, name: str) -> list[int]:
        first = self.connector.computed[name] // self.config["block_size"]
        return self._blocks(name)[first:]

    def _blocks(self, name: str) -> list[int]:
        return list(self.scheduler.kv_cache_manager.get_block_ids(name)[0])


def followed(config: Fields, finding: Fields, model: str) -> Fields:
    """Return what became of a finding."""
    patient = Patient(config, finding["shapes"], model)
    for event in finding["events"]:
        patient.follow(*event)
    gained: set[str] = set()
    for event in finding["loop"] * ROUNDS:
        gained |= patient.follow(*event)
    left = [name for name, r in patient.scheduler.requests.items() if not r.is_finished()]
    return {"decisions": patient.decisions, "left": sorted(left), "gained": sorted(gained)}


def answers(content: Fields) -> Iterator[Fields]:
    """Yield what became of each finding."""
    if content["scope"]["lookahead"]:
        raise SystemExit("vLLM has no look-ahead without draft tokens; explore without --lookahead")
    with model_folder() as model:
        for finding in content["findings"]:
            yield followed(content["config"], finding, model)


def main() -> None:
    """Write a line for each finding."""
    source, target = map(Path, sys.argv[1:])
    content = json.loads(source.read_text(encoding="utf-8"))
    lines = (json.dumps(answer) + "\n" for answer in answers(content))
    target.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
