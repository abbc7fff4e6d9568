"""A connector of vLLM that answers what it is told to, and moves nothing."""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)
from vllm.v1.request import RequestStatus

COMPLETE = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)


class ToldConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """The scheduler's side of a connector.

    Attributes:
        answers: for the questions of the next step, in any order of requests: whom, how many
            tokens or None for "ask again", and whether they are loaded asynchronously.
        keeps: the requests whose blocks are kept, once complete, until they have been sent.
        computed: tokens of each request that were computed when it was last asked about; what is
            loaded lies behind them.

    """

    answers: tuple[tuple[str, int | None, bool], ...] = ()
    keeps: frozenset[str] = frozenset()

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        """Know of nobody."""
        super().__init__(vllm_config, role, kv_cache_config)
        self.computed: dict[str, int] = {}

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Answer as was said, and where nothing was said, that nothing can be loaded."""
        self.computed[request.request_id] = num_computed_tokens
        for place, (name, tokens, is_asynchronous) in enumerate(self.answers):
            if name == request.request_id:
                self.answers = (*self.answers[:place], *self.answers[place + 1 :])
                return tokens, is_asynchronous
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Do nothing."""

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Tell the workers, which are not there, nothing."""
        return KVConnectorMetadata()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        """Keep the blocks of some of those that are complete, if they have any."""
        is_kept = request.request_id in self.keeps and request.status in COMPLETE
        return is_kept and len(block_ids) > 0, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Do nothing: this is the scheduler's side."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Do nothing."""

    def wait_for_save(self) -> None:
        """Do nothing."""
