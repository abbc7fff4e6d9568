"""Record what the scheduler of vLLM 0.25.1 decides on random small workloads, as it comes.

    python -m tests.peers.vllm_recorder FOLDER FIRST_SEED COUNT
    python -m tests.peers.vllm_recorder FOLDER CASE

writes FOLDER/random-SEED.jsonl.gz or FOLDER/CASE.jsonl.gz, in the format that `kvproof replay`
reads; CASE is one of CASES, for what random workloads do not come upon. It needs vLLM and
nothing of kvproof, so that it can run in an environment of its own; README.md says how to make it.
Nothing of vLLM is replaced but the model: tokens depend on request and position alone.
"""

import gzip
import json
import random
import sys
import zlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.peers.vllm_scheduler import (
    STOP_TOKEN,
    VOCABULARY,
    Fields,
    abort,
    block_hasher,
    build_scheduler,
    decision,
    model_folder,
    new_request,
)

DRAFT_TOKEN = 3
STEPS_MAX = 200


# --- Cases ----------------------------------------------------------------------------------------


# A victim that the pass had passed over: A's prefill is throttled, B's decode takes A's blocks, and
# C, who moves up by one, loses its turn.
CASES: dict[str, tuple[Fields, list[Fields]]] = {
    "skipped-turn": (
        {
            "num_blocks": 5,
            "block_size": 4,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 32,
            "max_model_len": 32,
            "policy": "priority",
            "enable_prefix_caching": False,
            "long_prefill_token_threshold": 4,
            "watermark": 0.0,
            "reserve_full_isl": True,
            "throttle": "001",
            "spec_tokens": 0,
            "spec_accept": 0.0,
            "seed": 0,
        },
        [
            {
                "id": name,
                "arrival_step": step,
                "prompt_token_ids": [100 * step + place for place in range(prompt)],
                "max_tokens": tokens,
                "priority": priority,
            }
            for name, step, prompt, tokens, priority in (
                ("A", 1, 16, 1, 9),
                ("B", 2, 4, 4, 0),
                ("C", 2, 4, 4, 0),
            )
        ],
    ),
}


def random_case(seed: int) -> tuple[Fields, list[Fields]]:
    """Return a configuration and a workload that is a little too large for it."""
    draw = random.Random(seed)
    block_size, usable = draw.choice([2, 4, 8]), draw.randint(6, 40)
    slots = block_size * usable
    drafts = draw.choice([0, 0, 1, 2, 3])
    config = {
        "num_blocks": usable + 1,
        "block_size": block_size,
        "max_num_seqs": draw.randint(1, 8),
        "max_num_batched_tokens": draw.choice([8, 13, 16, 32, 64]),
        "max_model_len": draw.choice([slots, slots, slots, 2 * slots]),
        "policy": draw.choice(["fcfs", "priority"]),
        "enable_prefix_caching": draw.random() < 0.6,
        # Not below 1 + drafts: there vLLM schedules fewer tokens than it says there are drafts.
        "long_prefill_token_threshold": draw.choice([0, 0, 1 + drafts, 8]),
        "watermark": draw.choice([0.0, 0.0, 0.05, 0.2]),
        "reserve_full_isl": draw.random() < 0.7,
        "throttle": draw.choice(["", "", "01", "0111", "110"]),
        "spec_tokens": drafts,
        "spec_accept": draw.choice([0.3, 0.8]),
        "seed": seed,
    }
    count = draw.randint(2, 12)
    return config, [random_request(draw, number, slots, seed) for number in range(count)]


def random_request(draw: random.Random, number: int, slots: int, seed: int) -> Fields:
    """Return an entry of a workload; some share their prefix, some are aborted."""
    name, prompt = f"r{number}", draw.randint(1, max(min(slots - 6, 48), 1))
    source = draw.choice([name, name, "shared", "common"])
    entry = {
        "id": name,
        "arrival_step": draw.randint(0, 10),
        "prompt_token_ids": [token_of(seed, source, place) for place in range(prompt)],
        "max_tokens": draw.randint(1, min(24, slots - prompt)),
        "priority": draw.randint(0, 2),
    }
    chances = {"abort_step": 0.12, "abort_mid_step": 0.08, "stop_after": 0.15}
    chosen = [field for field, chance in chances.items() if draw.random() < chance]
    return entry | {field: draw.randint(1, 20) for field in chosen}


def token_of(*key: Any) -> int:
    """Return a token that depends on the key alone and is neither stop nor draft token."""
    return 10 + zlib.crc32(repr(key).encode()) % (VOCABULARY - 10)


# --- The scheduler -------------------------------------------------------------------------------


class Peer:
    """A scheduler of vLLM, and a model that only counts."""

    def __init__(self, config: Fields, workload: list[Fields], model: str) -> None:
        """Make a scheduler to which nobody has come yet."""
        self.config, self.workload = config, {entry["id"]: entry for entry in workload}
        self.scheduler = build_scheduler(config, model)
        self.hasher = block_hasher(config) if config["enable_prefix_caching"] else None
        self.to_come = sorted(workload, key=lambda entry: int(entry["arrival_step"]))
        self.arrived = 0

    def is_done(self) -> bool:
        """Return whether nobody is there and nobody will come."""
        return not self.to_come and not self.scheduler.has_requests()

    def arrive(self, step: int) -> None:
        """Add who is there before a step, then abort who is to be aborted before it."""
        while self.to_come and self.to_come[0]["arrival_step"] <= step:
            self.arrived += 1
            self._add(self.to_come.pop(0))
        self._abort("abort_step", step)

    def step(self, number: int) -> Fields:
        """Do one step and return its line."""
        pattern = self.config["throttle"]
        throttled = bool(pattern) and pattern[(number - 1) % len(pattern)] == "1"
        line: Fields = {"step": number, "throttle": throttled}
        if self.scheduler.has_requests():
            output = self.scheduler.schedule(throttled)
            line |= decision(output) | {"after_schedule": self._snapshot()}
            samples = self._samples(output)
            self._abort("abort_mid_step", number)
            line["outputs"] = self._update(output, samples)
        else:
            self._abort("abort_mid_step", number)
        queue = self.scheduler.kv_cache_manager.block_pool.free_block_queue
        free = [block.block_id for block in queue.get_all_free_blocks()]
        return line | {"after_update": self._snapshot(), "free_list": free}

    def _add(self, entry: Fields) -> None:
        time = entry["arrival_step"] + 1e-6 * self.arrived
        self.scheduler.add_request(new_request(entry, time, self.hasher))

    def _abort(self, field: str, step: int) -> None:
        for name, entry in self.workload.items():
            if entry.get(field) == step:
                abort(self.scheduler, name)

    def _samples(self, output: Any) -> dict[str, list[int]]:
        """Return one token, and those of accepted drafts, for each request that samples."""
        new, cached = output.scheduled_new_reqs, output.scheduled_cached_reqs
        computed = {request.req_id: request.num_computed_tokens for request in new}
        computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        samples = {}
        for name, tokens in output.num_scheduled_tokens.items():
            drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
            request = self.scheduler.requests[name]
            whole = computed[name] + tokens - drafts >= request.num_tokens
            start = request.num_output_tokens
            count = 1 + self._accepted(name, start, drafts) if whole else 0
            samples[name] = [self._token(name, start + place) for place in range(count)]
        return samples

    def _accepted(self, name: str, start: int, drafts: int) -> int:
        seed, limit = self.config["seed"], 10_000 * self.config["spec_accept"]
        for place in range(drafts):
            if zlib.crc32(f"{seed}:a:{name}:{start + place}".encode()) % 10_000 >= limit:
                return place
        return drafts

    def _token(self, name: str, place: int) -> int:
        last = self.workload[name].get("stop_after") == place + 1
        return STOP_TOKEN if last else token_of(self.config["seed"], "output", name, place)

    def _update(self, output: Any, samples: dict[str, list[int]]) -> Fields:
        outputs, names = import_module("vllm.v1.outputs"), list(samples)
        result = outputs.ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=list(samples.values()),
        )
        brought = self.scheduler.update_from_output(output, result)
        if self.config["spec_tokens"] and names:
            drafts = [[DRAFT_TOKEN] * self.config["spec_tokens"] for _ in names]
            self.scheduler.update_draft_token_ids(outputs.DraftTokenIds(names, drafts))
        listed = [item for engine in brought.values() for item in engine.outputs]
        return {
            item.request_id: {
                "tokens": list(item.new_token_ids),
                "finish": None if item.finish_reason is None else str(item.finish_reason),
            }
            for item in listed
        }

    def _snapshot(self) -> Fields:
        scheduler = self.scheduler
        manager = scheduler.kv_cache_manager
        return {
            "free_blocks": manager.block_pool.get_num_free_blocks(),
            "running": [request.request_id for request in scheduler.running],
            "waiting": [request.request_id for request in scheduler.waiting],
            "capacity_bound": scheduler.prefill_capacity_bound,
            "reqs": {
                name: {
                    "status": request.status.name,
                    "computed": request.num_computed_tokens,
                    "tokens": request.num_tokens,
                    "preemptions": request.num_preemptions,
                    "blocks": list(manager.get_block_ids(name)[0]),
                }
                for name, request in scheduler.requests.items()
            },
        }


# --- The files ------------------------------------------------------------------------------------


def record(made_by: str, config: Fields, workload: list[Fields], model: str) -> Iterator[Fields]:
    """Yield the lines of a recording."""
    peer = Peer(config, workload, model)
    steps: list[Fields] = []
    while len(steps) < STEPS_MAX:
        peer.arrive(len(steps) + 1)
        if peer.is_done():
            break
        steps.append(peer.step(len(steps) + 1))
    yield {
        "format": "kvproof-recording/1",
        "made_by": f"python -m tests.peers.vllm_recorder FOLDER {made_by}",
        "config": config,
        "workload": workload,
        "verdict": "drained" if peer.is_done() else "stuck",
    }
    yield from steps


def cases(arguments: list[str]) -> Iterator[tuple[str, str, Fields, list[Fields]]]:
    """Yield name, command, configuration and workload of each case that is asked for."""
    if len(arguments) == 1:
        yield arguments[0], arguments[0], *CASES[arguments[0]]
    else:
        first, count = map(int, arguments)
        for seed in range(first, first + count):
            yield f"random-{seed:06}", f"{seed} 1", *random_case(seed)


def main() -> None:
    """Write as many recordings as asked for."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with model_folder() as model:
        for name, made_by, config, workload in cases(sys.argv[2:]):
            lines = record(made_by, config, workload, model)
            with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
