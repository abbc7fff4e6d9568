"""Prefill in one process and decode in another, on one machine, compared with neither.

Both processes make the same random model from one seed, and meet at a file. The prefill process
samples one token of each prompt, so that its KV is computed, and throws that token away: the decode
process loads the KV, computes the prompt's last token again, and samples it from there.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from attrs import field, frozen
from torch.distributed.distributed_c10d import Store

from kvproof.runtime.config import SchedulerConfig
from kvproof.runtime.connector import Connector
from kvproof.runtime.connectors.peer_decode import PeerDecodeConnector
from kvproof.runtime.connectors.peer_prefill import PeerPrefillConnector
from kvproof.runtime.connectors.peer_settings import PeerSettings
from kvproof.runtime.engine.generate import generate
from kvproof.runtime.engine.model import Model, load_model
from kvproof.runtime.kv_pool import KVPool
from kvproof.runtime.request import Request
from kvproof.runtime.scheduler import Scheduler

_WAIT_SECONDS = 0.001

MakeScheduler = Callable[[SchedulerConfig, Connector, KVPool], Any]


def new_scheduler(config: SchedulerConfig, connector: Connector, pool: KVPool) -> Scheduler:
    """Return a scheduler that asks a connector for KV."""
    options: dict[str, Any] = {"connector": connector, "kv_pool": pool}
    return Scheduler(config, **options)


def _as_prompts(prompts: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, prompts))


@frozen
class Workload:
    """What both processes know: the prompts, the limits, and how to make the model.

    `make_scheduler` must be a function that a new process can import.
    """

    prompts: tuple[tuple[int, ...], ...] = field(converter=_as_prompts)
    max_tokens: int
    config: SchedulerConfig
    settings: PeerSettings = field(factory=lambda: PeerSettings("random"))
    seed: int = 0
    make_scheduler: MakeScheduler = new_scheduler

    def model(self) -> Model:
        """Return the model, the same in every process."""
        return load_model(seed=self.seed)

    def requests(self, max_tokens: int) -> list[Request]:
        """Return a request for each prompt."""
        return [
            Request(f"request-{number}", prompt, max_tokens)
            for number, prompt in enumerate(self.prompts)
        ]


def generate_alone(workload: Workload) -> dict[str, list[int]]:
    """Return what each request samples in this process, without scheduler and connector."""
    model = workload.model()
    return {
        request.request_id: generate(
            model, request.prompt_token_ids, workload.max_tokens, ignore_eos=True
        )
        for request in workload.requests(workload.max_tokens)
    }


def generate_disaggregated(
    workload: Workload, timeout_seconds: float = 120.0
) -> dict[str, list[int]]:
    """Return what each request samples in the decode process, with KV from the prefill process.

    Raises TimeoutError if that takes too long, and RuntimeError if a process fails; both processes
    have ended in every case.
    """
    with tempfile.TemporaryDirectory() as folder:
        store_file = str(Path(folder) / "store")
        with _process(_prefill, workload, store_file) as prefill:
            with _process(_decode, workload, store_file) as decode:
                tokens = _result(decode, timeout_seconds)
            _result(prefill, timeout_seconds)
    return tokens


@contextmanager
def prefill_process(workload: Workload) -> Iterator[Store]:
    """Run the prefill half in a process of its own; yield the store at which it can be met.

    The process has ended when the context has, whatever happens in it.
    """
    with tempfile.TemporaryDirectory() as folder:
        store_file = str(Path(folder) / "store")
        with _process(_prefill, workload, store_file):
            yield _file_store(store_file)


def run_engine(
    model: Model, scheduler: Any, pool: KVPool, connector: Connector
) -> dict[str, list[int]]:
    """Run until no request is unfinished and no block is kept; return the sampled tokens.

    A step may be empty while loads are pending.
    """
    tokens: dict[str, list[int]] = {}
    while scheduler.has_unfinished_requests() or connector.has_pending_transfers():
        step = scheduler.schedule()
        sampled: Any = ()
        if not step.num_requests:
            time.sleep(_WAIT_SECONDS)
        else:
            logits = model.forward(step.to_tensors(model.device), pool)
            sampled = logits.argmax(dim=-1).cpu()
        for output in scheduler.update(step, sampled, transfers=connector.poll()):
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
    return tokens


def _prefill(workload: Workload, store_file: str, results: Connection) -> None:
    _run(workload, store_file, PeerPrefillConnector, 1, results)


def _decode(workload: Workload, store_file: str, results: Connection) -> None:
    _run(workload, store_file, PeerDecodeConnector, workload.max_tokens, results)


def _run(
    workload: Workload,
    store_file: str,
    make_connector: Callable[[KVPool, Store, PeerSettings], Connector],
    max_tokens: int,
    results: Connection,
) -> None:
    torch.set_num_threads(1)  # two processes share the cores
    config, model = workload.config, workload.model()
    pool = model.new_pool(config.num_blocks, config.block_size)
    connector = make_connector(pool, _file_store(store_file), workload.settings)
    try:
        scheduler = workload.make_scheduler(config, connector, pool)
        for request in workload.requests(max_tokens):
            scheduler.add_request(request)
        results.send(run_engine(model, scheduler, pool, connector))
        results.recv()  # the other process may still need this one
    finally:
        connector.close()


def _file_store(store_file: str) -> Store:
    from torch._C._distributed_c10d import FileStore

    return FileStore(store_file, 2)


@contextmanager
def _process(
    work: Callable[[Workload, str, Connection], None], workload: Workload, store_file: str
) -> Iterator[Connection]:
    """Run one half in a fresh process; let it end by itself, and make sure that it does."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=work, args=(workload, store_file, there), daemon=True)
    process.start()
    there.close()
    try:
        yield here
        with suppress(OSError):  # it may have failed, and gone
            here.send("leave")
        process.join(workload.settings.peer_timeout_seconds)
    finally:
        process.kill()
        process.join()
        here.close()


def _result(results: Connection, timeout_seconds: float) -> dict[str, list[int]]:
    if not results.poll(timeout_seconds):
        raise TimeoutError(f"a process has said nothing for {timeout_seconds} s; give it more time")
    try:
        found: dict[str, list[int]] = results.recv()
    except EOFError as error:
        raise RuntimeError("a process has failed; its error output says why") from error
    return found
