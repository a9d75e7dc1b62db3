"""The parts of vLLM's objects that the connector reads, and an instance made of both halves."""

from types import SimpleNamespace

import torch

from inlay.connect.shared_store import SharedStore
from inlay.connect.vllm.scheduling import Scheduling
from inlay.connect.vllm.settings import ConnectorSettings
from inlay.connect.vllm.working import Working
from inlay.core.block_hash import Namespace
from inlay.core.kv_format import KvFormat, Plane

BLOCK = 4
LAYERS = ("layers.0.attn", "layers.1.attn")
NAMESPACE = Namespace(
    fingerprint="vllm/test",
    weight_format="bfloat16/plain",
    kv_format=KvFormat(
        page_tokens=BLOCK, dtype="float32", planes=(Plane("kv", 12),), layers=2, kv_heads=2
    ),
)


def request(name, tokens, **changed):
    """A request of vLLM's whose prompt is `tokens`."""
    return SimpleNamespace(
        request_id=name,
        all_token_ids=list(tokens),
        num_prompt_tokens=len(tokens),
        num_computed_tokens=len(tokens),
        mm_features=[],
        prompt_embeds=None,
        lora_request=None,
        cache_salt=None,
        kv_transfer_params=None,
        status=SimpleNamespace(name="FINISHED_LENGTH_CAPPED"),
        **{"num_tokens": len(tokens), **changed},
    )


def planned(**scheduled):
    """vLLM's plan of one step: by request (tokens computed before, tokens of the step)."""
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, num_computed_tokens=before)
            for name, (before, _) in scheduled.items()
        ],
        scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[]),
        num_scheduled_tokens={name: tokens for name, (_, tokens) in scheduled.items()},
        scheduled_spec_decode_tokens={},
    )


class Instance:
    """Both halves over tensors of 8 blocks, `[blocks, heads, tokens, 2 * head_dim]`.

    Args:
        connect: opens the store; None: no store.
        settings: of the connector.
        layout: dimensions of each tensor as they lie in memory.
    """

    def __init__(self, connect=None, layout=(0, 1, 2, 3), **settings):
        self.settings = ConnectorSettings(**settings)
        self.blocks = {}
        torch.manual_seed(id(self) % 1000)
        shape = (8, 2, BLOCK, 6)
        self.tensors = {}
        for name in LAYERS:
            stored = torch.randn([shape[axis] for axis in layout])
            self.tensors[name] = stored.permute([layout.index(axis) for axis in range(4)])

        def store():
            return None if connect is None else SharedStore("here", connect=connect)

        self.scheduling = Scheduling(
            self.settings, NAMESPACE, store(), "engine", lambda name: self.blocks[name]
        )
        self.working = Working(self.settings, NAMESPACE, store(), self.tensors, 8)
        self.scheduling.addresses = [self.working.peers.address]

    def page(self, block):
        """All layers of a block."""
        return torch.stack([tensor[block] for tensor in self.tensors.values()])

    def run(self, work):
        """One step of the workers."""
        self.working.begin(work)
        for name in LAYERS[:1]:  # the others come with the end of the step
            self.working.layer_done(name)
        self.working.end()

    def close(self):
        """Close both halves."""
        self.scheduling.close()
        self.working.close()
