"""What each GPU of a design reads and computes in a step: `core.roofline`, as linear forms.

Each part of a model reads its bytes and does its operations on a GPU; the longer of the two counts.
Where `core.roofline` has one kind of step, of requests alike, a step here has prompts and decodes
of any lengths, and these are exact:

- matrices, experts and the output matrix for all steps;
- attention of decodes, and of prompts in full chunks. A shorter chunk reads what it attends to with
  fewer tokens, which is less than it computes but for a few tokens;
- windows where contexts are longer than them; shorter ones count as the window.

All groups of a design have an even part of a step. Stages of a pipeline each work on such a part,
one after the other, so that a step is one pass of each part; filling the pipeline is left out.
"""

from collections.abc import Iterator

from inlay.core.model_shape import ModelShape
from inlay.core.roofline import Part as ModelPart
from inlay.core.roofline import Step, Work, parts_of, rates_on, work_of
from inlay.sim.design import InstanceDesign
from inlay.sim.forms import (
    CONTEXT,
    EXPERTS,
    LOGITS,
    PAIRS,
    PROMPT,
    ROWS,
    STEP,
    TOKENS,
    FormRow,
    Part,
    longest,
)

ROUTED, SHARED = "routed experts", "shared experts"


def operators(design: InstanceDesign) -> dict[str, Part]:
    """What a step has one after the other, in seconds of the busiest GPU.

    Matrices are together by their formats: those of one do as many operations per byte. `SHARED`
    experts are apart where the host computes beside them.
    """
    return dict(_operators(design))


def _operators(design: InstanceDesign) -> Iterator[tuple[str, Part]]:
    across, rank = design.parallelism, design.rank_shape
    share = 1 / (across.data * across.pipeline)
    matrices: dict[str, list[tuple[ModelPart, Work]]] = {}
    for part in parts_of(rank, design.formats):
        one, name = work_of(rank, part, Step(new_tokens=1)), part.name
        if name == "attention core":
            yield from _attention(design, part, one, share)
            continue
        read_F, flops_F = one.read_bytes * STEP, one.flops * share * TOKENS
        if name == ROUTED:
            read_F, flops_F = _experts(design, one)
        elif name == "embedding":
            read_F = one.read_bytes * share / across.tensor * TOKENS
        elif name == "output matrix":
            read_F = read_F / across.tensor
            flops_F = one.flops * share / across.tensor * LOGITS
        elif name == "latent projections" and _expands(design):
            flops_F = one.flops * share * (_seen(design) + ROWS)
        elif name != SHARED or not design.host_share:
            matrices.setdefault(part.format, []).append((part, one))
            continue
        yield name, _part(design, part, read_F, flops_F)
    for held, group in matrices.items():
        read = sum(one.read_bytes for _, one in group)
        flops = sum(one.flops for _, one in group)
        yield held, _part(design, group[0][0], read * STEP, flops * share * TOKENS)


def _part(design: InstanceDesign, part: ModelPart, read_F: FormRow, flops_F: FormRow) -> Part:
    bytes_per_s, flops_per_s = rates_on(design.gpu, "gpu", part)
    return longest([(read_F / bytes_per_s,), (flops_F / flops_per_s,)])


def _experts(design: InstanceDesign, one: Work) -> tuple[FormRow, FormRow]:
    """Of the busiest GPU, which reads its even part of those that are chosen."""
    across, shape = design.parallelism, design.shape
    gpus = across.stage_gpus if across.whole_experts else 1
    copies = 1 + across.redundant_experts / shape.experts
    return (
        one.read_bytes / shape.experts_per_token * copies / gpus * EXPERTS,
        one.flops * across.imbalance / (gpus * across.pipeline) * TOKENS,
    )


def _attention(
    design: InstanceDesign, part: ModelPart, one: Work, share: float
) -> Iterator[tuple[str, Part]]:
    """Of prompts and of decodes: two kernels, of which one computes and one reads."""
    shape, chunk = design.rank_shape, design.chunk_tokens
    windows = [window for window in shape.sliding_windows if window]
    whole = (shape.layers - len(windows)) / shape.layers
    width = sum(windows) / shape.layers  # of an average layer
    reached = sum(window + chunk - 1 for window in windows) / shape.layers / chunk
    pair = _expanded_flops(shape) if _expands(design) else one.flops
    read_F = one.read_bytes * share * (whole * _seen(design) + reached * PROMPT)
    pairs_F = pair * share * (whole * PAIRS + width * PROMPT)
    yield "attention of prompts", _part(design, part, read_F, pairs_F)
    contexts_F = share * (whole * CONTEXT + width * ROWS)
    yield (
        "attention of decodes",
        _part(design, part, one.read_bytes * contexts_F, one.flops * contexts_F),
    )


def _seen(design: InstanceDesign) -> FormRow:
    """Tokens that full chunks of prompts attend to, themselves among them: a chunk of n tokens
    behind c others has n c + n (n + 1) / 2 pairs."""
    chunk = design.chunk_tokens
    return PAIRS / chunk + (chunk - 1) / (2 * chunk) * PROMPT


def _expands(design: InstanceDesign) -> bool:
    """Whether prompts are computed with the keys and values of each head, which are made of all
    latents in each chunk: with chunks long enough that is less than meeting latents as they are."""
    mla, costs = design.shape.mla, design.costs
    if mla is None or not costs.expands_latents:
        return False
    absorbed = 2 * mla.kv_rank + mla.rope_dim
    expanded = mla.nope_dim + mla.rope_dim + mla.value_dim
    made = mla.kv_rank * (mla.nope_dim + mla.value_dim)
    return expanded + made / design.chunk_tokens < absorbed


def _expanded_flops(shape: ModelShape) -> float:
    """Of a pair of tokens, in all layers."""
    mla = shape.mla
    assert mla is not None
    return 2.0 * shape.layers * shape.heads * (mla.nope_dim + mla.rope_dim + mla.value_dim)
