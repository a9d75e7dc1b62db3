"""What GPUs of a design exchange in a step, as parts of its time.

Sums over the GPUs of a tensor-parallel group go round as a ring: each GPU sends `2 (t - 1) / t` of
the rows. Rows on their way to whole experts are sent once per expert where they are decodes (no GPU
stands between, so they are there sooner), and of prompts once per machine, where GPUs pass them on;
back they come as sums. What goes over the network and what stays in a machine runs beside each
other, and the busiest GPU has `imbalance` times the mean.

Sources: Megatron-LM (arXiv 1909.08053) for the sums, DeepEP for the two ways to experts.
"""

from inlay.core.errors import ConfigError
from inlay.core.roofline import expected_experts
from inlay.sim.design import InstanceDesign
from inlay.sim.forms import PROMPT, ROWS, STEP, TOKENS, Part, longest

_ROW_BYTES = 2
"""Of each number of a row between GPUs."""
_FP8_BYTES = 1 + 4 / 128
"""On the way to experts in fp8, with their scales."""


def summed_up(design: InstanceDesign) -> list[Part]:
    """Rows that are summed in each layer, and handed from stage to stage."""
    across, shape, costs = design.parallelism, design.shape, design.costs
    share = 1 / (across.data * across.pipeline)
    row_bytes = _ROW_BYTES * shape.hidden
    found: list[Part] = []
    if across.tensor > 1:
        # Attention's, and that of the MLP but where rows come back from experts.
        apart = len(shape.sparse_layers) if across.data > 1 else 0
        count = 2 * shape.layers - apart
        sent = 2 * (across.tensor - 1) / across.tensor * row_bytes * share
        rate = _rate(design, across.tensor)
        found.append((count * (costs.exchange_s * STEP + sent / rate * TOKENS),))
    if across.pipeline > 1:
        hops, rate = across.pipeline - 1, _rate(design, across.gpus)
        found.append((hops * (costs.exchange_s * STEP + row_bytes * share / rate * TOKENS),))
    return found


def routed(design: InstanceDesign) -> Part:
    """Rows on their way to whole experts and back; none where all GPUs have all rows."""
    across, shape, costs = design.parallelism, design.shape, design.costs
    if across.data == 1:
        return ()
    gpus = across.stage_gpus
    machines = design.machines_of(gpus)
    chosen, layers = shape.experts_per_token, len(shape.sparse_layers)
    there = _FP8_BYTES if design.formats.experts.startswith("fp8") else _ROW_BYTES
    token_bytes = shape.hidden * (there + _ROW_BYTES)
    starts = 2 * costs.exchange_s * STEP
    share = across.imbalance / (gpus * across.pipeline)

    def part(decode_copies: float, prompt_copies: float, rate: float) -> Part:
        copies = decode_copies * ROWS + prompt_copies * PROMPT
        return (layers * (starts + copies * share * token_bytes / rate),)

    away = 1 - 1 / machines
    near = 1 / machines - 1 / gpus
    spread = expected_experts(gpus, 1, chosen) * (1 - 1 / gpus)
    parts = [part(chosen * near, spread, _peer_rate(design))]
    if machines > 1:
        hosts = expected_experts(machines, 1, chosen) * away
        parts.append(part(chosen * away, hosts, _network_rate(design)))
    return longest(parts)


def _rate(design: InstanceDesign, gpus: int) -> float:
    """Bytes/s between so many neighbouring GPUs: the slowest link counts."""
    return _network_rate(design) if design.machines_of(gpus) > 1 else _peer_rate(design)


def _peer_rate(design: InstanceDesign) -> float:
    gpu = design.gpu
    gbs = gpu.peer_gbs or gpu.link_gbs
    if not gbs:
        raise ConfigError(
            f"{gpu.title}: what its GPUs exchange is not known: set peer_gbs in a machine file"
        )
    return gbs * 1e9 * design.costs.peer_share


def _network_rate(design: InstanceDesign) -> float:
    return design.gpu.network_gbs * 1e9 * design.costs.network_share
