"""The class that vLLM loads: its interface on one side, the two halves on the other."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from vllm import __version__ as vllm_version
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
)

from inlay.connect.shared_store import SharedStore
from inlay.connect.vllm.identity import instance_namespace
from inlay.connect.vllm.scheduling import Scheduling
from inlay.connect.vllm.settings import ConnectorSettings
from inlay.connect.vllm.steps import StepWork
from inlay.connect.vllm.working import Working
from inlay.core.tensor_parallel import Rank
from inlay.store import Contribution

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

TESTED = ("0.32",)
"""Releases of vLLM that the connector was run with."""


@dataclass
class InlayMetadata(KVConnectorMetadata):
    """What a step asks of the workers."""

    work: StepWork


@dataclass
class InlayHandshake(KVConnectorHandshakeMetadata):
    """Where a worker's cache is reached; None: it is not."""

    address: str | None


class InlayConnector(KVConnectorBase_V1):
    """See the package. The docstrings of methods are those of vLLM's base class."""

    # ruff: noqa: D102

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        _log_with_vllm()
        transfer = vllm_config.kv_transfer_config
        settings = ConnectorSettings.read(transfer.kv_connector_extra_config)
        namespace = instance_namespace(vllm_config, kv_cache_config, settings.model_id)
        self._settings = settings
        self._namespace = namespace
        self._blocks = kv_cache_config.num_blocks
        self._scheduling: Scheduling | None = None
        self._working: Working | None = None
        if role == KVConnectorRole.SCHEDULER:
            if transfer.kv_load_failure_policy != "recompute":
                log.warning(
                    "kv_load_failure_policy is %r: requests fail when blocks are lost on their "
                    "way; with 'recompute' they are computed",
                    transfer.kv_load_failure_policy,
                )
            self._scheduling = Scheduling(
                settings,
                namespace,
                self._open(None),
                transfer.engine_id,
                lambda request_id: self._kv_cache_manager.get_block_ids(request_id)[0],
            )

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        assert self._scheduling is not None
        return self._scheduling.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert self._scheduling is not None
        block_ids = blocks.get_block_ids()[0]
        self._scheduling.allocated(request, block_ids, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        assert self._scheduling is not None
        return InlayMetadata(self._scheduling.step(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        assert self._scheduling is not None
        if connector_output.invalid_block_ids:
            self._scheduling.lost(connector_output.invalid_block_ids)

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        assert self._scheduling is not None
        return self._scheduling.finished(request, block_ids)

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        assert self._scheduling is not None
        addresses = [metadata[rank].address for rank in sorted(metadata)]
        self._scheduling.addresses = addresses if None not in addresses else []

    def register_kv_caches(self, kv_caches: dict[str, "torch.Tensor"]) -> None:
        from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

        kv_format = self._namespace.kv_format
        rank = Rank(get_tensor_model_parallel_rank(), kv_format.tp_degree)
        namespace = msgspec.structs.replace(
            self._namespace,
            kv_format=msgspec.structs.replace(kv_format, tp_rank=rank.number),
        )
        contribute = None
        if self._settings.contribute is not None:
            contribute = Contribution(memory=self._settings.contribute)
        self._working = Working(
            self._settings, namespace, self._open(contribute), kv_caches, self._blocks
        )

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._working is not None:
            self._working.begin(self._metadata.work)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: blocks come between steps."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: "torch.Tensor", attn_metadata: Any, **kwargs: Any
    ) -> None:
        if self._working is not None:
            self._working.layer_done(layer_name)

    def wait_for_save(self) -> None:
        if self._working is not None:
            self._working.end()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        if self._working is None:
            return None, None
        return self._working.finished(finished_req_ids)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set() if self._working is None else self._working.failed_blocks()

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return None if self._working is None else InlayHandshake(self._working.peers.address)

    def shutdown(self) -> None:
        for half in (self._scheduling, self._working):
            if half is not None:
                half.close()
        self._scheduling = self._working = None

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        # `save_kv_layer` is a call out of the model. Where it does not come, `wait_for_save`
        # copies all layers; with it, copies overlap with computing.
        return bool(extra_config.get("store"))

    @property
    def _metadata(self) -> InlayMetadata:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, InlayMetadata)
        return metadata

    def _open(self, contribute: Contribution | None) -> SharedStore | None:
        if self._settings.store is None:
            return None
        return SharedStore(
            self._settings.store, contribute=contribute, timeout_s=self._settings.call_s
        )


def _log_with_vllm() -> None:
    ours, its = logging.getLogger("inlay"), logging.getLogger("vllm")
    ours.handlers, ours.propagate = its.handlers, False
    ours.setLevel(its.level)
    if not vllm_version.startswith(tuple(f"{one}." for one in TESTED)):
        log.warning(
            "InlayConnector was run with vLLM %s; this is %s", ", ".join(TESTED), vllm_version
        )
