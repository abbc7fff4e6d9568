"""The bound of an exploration as a recorder of vLLM 0.25.1 takes its settings."""

from __future__ import annotations

from typing import Any

from kvproof.verify.explorer.scope import Scope


def recorder_settings(scope: Scope) -> dict[str, Any]:
    """Return the settings, as in the header of a recording (`kvproof.verify.recording`)."""
    config = scope.config()
    return {
        "num_blocks": config.num_blocks,
        "block_size": config.block_size,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_model_len": config.max_model_len,
        "policy": config.policy,
        "enable_prefix_caching": config.enable_prefix_caching,
        "long_prefill_token_threshold": 0,
        "watermark": config.watermark,
        "reserve_full_isl": config.scheduler_reserve_full_isl,
        "throttle": "",
        "async_scheduling": config.max_steps_in_flight > 1,
        "connector": True,
        "kv_role": "kv_both",
        "kv_load_failure_policy": config.kv_load_failure_policy,
        "spec_tokens": 0,
        "spec_accept": 0.0,
        "seed": 0,
    }
