"""vLLM's own scheduler under a configuration that is given as plain values, without any model."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.update(PYTHONHASHSEED="0", VLLM_LOGGING_LEVEL="CRITICAL", VLLM_NO_USAGE_STATS="1")
os.environ.update(HF_HUB_OFFLINE="1", VLLM_USE_V2_MODEL_RUNNER="0")  # The second needs Triton.

STOP_TOKEN, VOCABULARY = 2, 32_000
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "eos_token_id": STOP_TOKEN,
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 131_072,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "torch_dtype": "float32",
    "vocab_size": VOCABULARY,
}

Fields = dict[str, Any]


@contextmanager
def model_folder() -> Iterator[str]:
    """Make a folder with the configuration of a model, and nothing else of it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        yield folder


def build_scheduler(config: Fields, model: str) -> Any:
    """Return vLLM's own scheduler under a configuration; `model` is the folder of one.

    With `connector` it asks a `ToldConnector`; with `async_scheduling` it is the scheduler that
    runs ahead of its samples.
    """
    configs, interface = import_module("vllm.config"), import_module("vllm.v1.kv_cache_interface")
    whole = vllm_config(configs, config, model)
    # The CPU platform may change these; the scheduler does not depend on the device.
    runs_ahead = config.get("async_scheduling", False)
    whole.scheduler_config.async_scheduling = runs_ahead
    whole.scheduler_config.max_num_seqs = config["max_num_seqs"]
    whole.scheduler_config.max_num_batched_tokens = config["max_num_batched_tokens"]
    whole.cache_config.block_size = config["block_size"]
    whole.cache_config.num_gpu_blocks = config["num_blocks"]
    whole.cache_config.enable_prefix_caching = config["enable_prefix_caching"]
    layout = interface.FullAttentionSpec(
        block_size=config["block_size"],
        num_kv_heads=1,
        head_size=1,
        dtype=import_module("torch").float32,
    )
    group = interface.KVCacheGroupSpec(["layer"], layout)
    folder, name = "vllm.v1.core.sched", "scheduler"
    made = getattr(
        import_module(f"{folder}.{'async_' if runs_ahead else ''}{name}"),
        "AsyncScheduler" if runs_ahead else "Scheduler",
    )
    return made(
        vllm_config=whole,
        kv_cache_config=interface.KVCacheConfig(config["num_blocks"], [], [group]),
        structured_output_manager=import_module(
            "vllm.v1.structured_output"
        ).StructuredOutputManager(whole),
        block_size=config["block_size"],
        hash_block_size=config["block_size"],
        log_stats=False,
    )


def vllm_config(configs: Any, config: Fields, folder: str) -> Any:
    """Return the configuration as vLLM wants it."""
    model = configs.ModelConfig(
        model=folder,
        skip_tokenizer_init=True,
        dtype="float32",
        seed=0,
        max_model_len=config["max_model_len"],
    )
    same = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "policy", "watermark")
    parallel, spec = configs.ParallelConfig(), None
    if config["spec_tokens"]:
        spec = configs.SpeculativeConfig(
            model="ngram",
            method="ngram",
            num_speculative_tokens=config["spec_tokens"],
            prompt_lookup_max=2,
            target_model_config=model,
            target_parallel_config=parallel,
        )
    transfer = None
    if config.get("connector"):
        transfer = configs.KVTransferConfig(
            kv_connector="ToldConnector",
            kv_connector_module_path="tests.peers.vllm_told_connector",
            kv_role=config["kv_role"],
            kv_load_failure_policy=config["kv_load_failure_policy"],
        )
    return configs.VllmConfig(
        model_config=model,
        scheduler_config=configs.SchedulerConfig(
            **{name: config[name] for name in same},
            is_encoder_decoder=False,
            long_prefill_token_threshold=config["long_prefill_token_threshold"],
            scheduler_reserve_full_isl=config["reserve_full_isl"],
            async_scheduling=False,
            disable_hybrid_kv_cache_manager=True,
        ),
        cache_config=configs.CacheConfig(
            block_size=config["block_size"],
            enable_prefix_caching=config["enable_prefix_caching"],
        ),
        parallel_config=parallel,
        device_config=configs.DeviceConfig("cpu"),
        speculative_config=spec,
        kv_transfer_config=transfer,
    )


def new_request(entry: Fields, arrival_time: float, hasher: Any) -> Any:
    """Return a request as vLLM wants it, from an entry of a workload."""
    sampling = import_module("vllm.sampling_params").SamplingParams
    parameters = sampling(temperature=0.0, max_tokens=entry["max_tokens"], ignore_eos=False)
    parameters.update_from_generation_config({}, STOP_TOKEN)
    return import_module("vllm.v1.request").Request(
        request_id=entry["id"],
        prompt_token_ids=list(entry["prompt_token_ids"]),
        sampling_params=parameters,
        pooling_params=None,
        arrival_time=arrival_time,
        priority=entry["priority"],
        block_hasher=hasher,
    )


def abort(scheduler: Any, name: str) -> None:
    """End a request."""
    status = import_module("vllm.v1.request").RequestStatus
    scheduler.finish_requests(name, status.FINISHED_ABORTED)


def block_hasher(config: Fields) -> Any:
    """Return what hashes the blocks of a request."""
    utilities = import_module("vllm.v1.core.kv_cache_utils")
    sha256 = import_module("vllm.utils.hashing").get_hash_fn_by_name("sha256")
    utilities.init_none_hash(sha256)
    return utilities.get_request_block_hasher(config["block_size"], sha256)


def decision(output: Any) -> Fields:
    """Return what a step decided, in the fields of a recording."""
    new, cached = output.scheduled_new_reqs, output.scheduled_cached_reqs
    blocks = {request.req_id: list(request.block_ids[0]) for request in new}
    for name, groups in zip(cached.req_ids, cached.new_block_ids, strict=True):
        blocks[name] = [] if groups is None else list(groups[0])
    computed = {request.req_id: request.num_computed_tokens for request in new}
    computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    drafts = output.scheduled_spec_decode_tokens
    return {
        "num_scheduled_tokens": dict(output.num_scheduled_tokens),
        "new": [request.req_id for request in new],
        "resumed": [name for name in cached.req_ids if name in cached.resumed_req_ids],
        "preempted": sorted(output.preempted_req_ids or ()),
        "finished": sorted(output.finished_req_ids),
        "new_block_ids": blocks,
        "computed_at_schedule": computed,
        "spec": {name: len(tokens) for name, tokens in drafts.items()},
    }
