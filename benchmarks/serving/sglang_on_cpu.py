"""`sglang.launch_server` on a CPU, without the kernels that no package index has for one.

A script of its own, run by the interpreter of the environment `vllm` (`serving/sglang.py`), whose
torch and transformers are those that SGLang asks for; `SGLANG_SITE` names the site-packages with
SGLang. Nothing of SGLang's scheduler, caches, server or transfers is replaced. What is:

- torchvision, which only image models call: an empty stand-in;
- page-locking host memory for CUDA: nothing, as there is no CUDA;
- HiCache's two copies between device and host pages, which are kernels of `sgl_kernel`: torch's
  indexing, for the layout `page_first_direct`;
- page numbers that a prefill instance copies to its host behind a CUDA event: these are there.

SGLang's processes are spawned, and run this module again, so it does its work when it is imported.
"""

import importlib
import os
import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any

import torch

IMAGES = ("", ".io", ".transforms", ".transforms.functional", ".transforms.v2")
POOLS = "sglang.srt.mem_cache.pool_host"


class _Invented(types.ModuleType):
    """A module that has an empty class for each name."""

    __version__ = "0"

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


def _invent_torchvision() -> None:
    transformers = importlib.import_module("transformers")
    # These look for torchvision when they are imported, and must not find the stand-in.
    transformers.utils.import_utils.is_torchvision_available()
    _ = transformers.AutoProcessor, transformers.AutoImageProcessor
    for tail in (*IMAGES, ".transforms.v2.functional"):
        module = _Invented(f"torchvision{tail}")
        module.__spec__ = ModuleSpec(module.__name__, None)
        module.__path__ = []
        sys.modules[module.__name__] = module


def load_layer(
    *,
    src_ptrs: list[torch.Tensor],
    dst_ptrs: list[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    layer_id: int,
    page_size: int,
) -> None:
    """Host pages into rows of one layer: `transfer_kv_per_layer_direct_pf_lf`."""
    pages = src_indices[::page_size] // page_size
    for host, device in zip(src_ptrs, dst_ptrs, strict=True):
        device[dst_indices] = host[pages, layer_id].flatten(0, 1)


def save_layers(
    *,
    src_ptrs: list[torch.Tensor],
    dst_ptrs: list[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Rows of all layers, keys first, into host pages: `transfer_kv_all_layer_direct_lf_pf`."""
    pages, layers = dst_indices[::page_size] // page_size, len(src_ptrs) // len(dst_ptrs)
    for plane, host in enumerate(dst_ptrs):
        for layer in range(layers):
            rows = src_ptrs[plane * layers + layer][src_indices]
            host[pages, layer] = rows.unflatten(0, (-1, page_size))


def _replace_copies() -> None:
    common: Any = importlib.import_module(f"{POOLS}.common")
    common._cuda_host_register = lambda buffer, granularity=None: None
    common._cuda_host_unregister = lambda buffer: None
    pool: Any = importlib.import_module(f"{POOLS}.mha")
    pool._cuda_host_unregister = common._cuda_host_unregister
    pool.transfer_kv_per_layer_direct_pf_lf = load_layer
    pool.transfer_kv_all_layer_direct_lf_pf = save_layers


def _send_without_events() -> None:
    sender: Any = importlib.import_module("sglang.srt.disaggregation.mooncake.conn")
    sender.MooncakeKVSender.supports_host_tensor_indices = False


if (site := os.environ["SGLANG_SITE"]) not in sys.path:
    sys.path.append(site)  # behind the interpreter's own
_invent_torchvision()
_replace_copies()
_send_without_events()

if __name__ == "__main__":
    arguments = importlib.import_module("sglang.srt.server_args").prepare_server_args(sys.argv[1:])
    importlib.import_module("sglang.launch_server").run_server(arguments)
