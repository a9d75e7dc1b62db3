"""The cluster of Mooncake's experiments, as far as it is published.

LLaMA3-70B in bf16 on machines of 8 A800, each an instance; on those for prompts a cache of 3 M
tokens in the host's memory, about 1 TB. Here it lies where the instance computes: that reading it
is hidden behind computing is what the paper measured (a load of 0.4 s beside 2.35 s for 128,000
tokens of which 95 % are cached). What decodes has the room of its GPUs.

Source: Mooncake (FAST'25), sections 5 and 6; 4 adapters of 200 Gb/s a machine.
"""

from dataclasses import replace

from inlay.core.hardware import machine_named
from inlay.sim.design import InstanceDesign, Parallelism, file_formats
from inlay.sim.hardware import instance_of
from inlay.sim.scenario import Kind
from inlay.sim.studies.known import known_shape

CACHE_TOKENS = 3_000_000
NETWORK_GBITS = 800.0
PAGE_TOKENS = 512
GPUS = 8
"""Of a machine."""


def design(*, chunk_tokens: int = 8192) -> InstanceDesign:
    """One machine's GPUs, and what they hold.

    Args:
        chunk_tokens: of a prompt, in a step.
    """
    shape = known_shape("llama-3.1-70b")
    return InstanceDesign(
        shape=shape,
        formats=file_formats(shape),
        machine=machine_named("xeon-spr-2s+8xa800"),
        parallelism=Parallelism(tensor=8),
        chunk_tokens=chunk_tokens,
    )


def cluster(
    prefill: int,
    decode: int,
    *,
    chunk_tokens: int = 8192,
    network_gbits: float = NETWORK_GBITS,
    cache_tokens: int | None = CACHE_TOKENS,
) -> tuple[Kind, ...]:
    """So many machines for prompts and for outputs; without the latter, all do both.

    Args:
        network_gbits: of all adapters of a machine, one direction.
        cache_tokens: of those that compute prompts; None: what its GPUs have room for.
    """
    network = network_gbits / 8 * 1e9
    one = replace(
        instance_of(design(chunk_tokens=chunk_tokens), page_tokens=PAGE_TOKENS),
        out_bytes_per_s=network,
        in_bytes_per_s=network,
    )
    caches = one
    if cache_tokens is not None:
        caches = replace(one, num_pages=cache_tokens // PAGE_TOKENS)
    if not decode:
        return (Kind(instance=caches, count=prefill, name="all", gpus=GPUS, assumed=True),)
    return (
        Kind(
            instance=caches, role="prefill", count=prefill, name="prefill", gpus=GPUS, assumed=True
        ),
        Kind(instance=one, role="decode", count=decode, name="decode", gpus=GPUS, assumed=True),
    )
