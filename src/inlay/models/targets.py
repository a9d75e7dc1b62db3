"""The matrices of a model that LoRA can be put on.

Knows shapes and the names that published files use; loads no torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from inlay.core.model_shape import ModelShape
from inlay.models.weight_names import layer_parts, names_of

_WEIGHT = ".weight"
_EXPERT = ".{expert}"
_ATTENTION = ("q", "k", "v", "q_down", "q_up", "kv_down", "kv_up", "output")
_MLP = ("gate", "up", "down", "shared_gate", "shared_up", "shared_down")
_EXPERTS = ("expert_gate", "expert_up", "expert_down")


@dataclass(frozen=True)
class Target:
    """One matrix `[rows, columns]`, or one of each routed expert of a layer.

    Attributes:
        part: of the decoder, as `inlay.models.weight_names` has it.
        layer: its number.
        name: of the module in Hugging Face's code, such as `model.layers.0.self_attn.q_proj`;
            `{expert}` stands where a routed expert has its number.
        experts: how many share the name; 0: it is no routed expert's.
    """

    part: str
    layer: int
    name: str
    rows: int
    columns: int
    experts: int = 0

    @property
    def path(self) -> str:
        """The name without a number of an expert, which targets are compared with."""
        return self.name.replace(_EXPERT, "")

    @property
    def leaf(self) -> str:
        """The last word of its name."""
        return self.path.rpartition(".")[2]

    @property
    def modules(self) -> list[str]:
        """Those that have it: one, or that of each expert."""
        return [self.name_of(expert) for expert in range(self.experts or 1)]

    def name_of(self, expert: int) -> str:
        """The module of one expert; of other matrices the name itself."""
        return self.name.replace("{expert}", str(expert))


def targets_of(shape: ModelShape) -> Iterator[Target]:
    """All matrices of a model that LoRA can be put on: not the router, embedding and head."""
    names = names_of(shape).names
    for layer in range(shape.layers):
        there = layer_parts(shape, layer)
        for part in (*_ATTENTION, *_MLP):
            if part in there:
                yield Target(part, layer, _module(names[part], layer), *there[part])
        if layer not in shape.sparse_layers:
            continue
        hidden, width = shape.hidden, shape.moe_intermediate
        for part in _EXPERTS:
            rows, columns = (hidden, width) if part == "expert_down" else (width, hidden)
            name = _module(names[part], layer)
            yield Target(part, layer, name, rows, columns, shape.experts)


def _module(pattern: str, layer: int) -> str:
    return pattern.removesuffix(_WEIGHT).replace("{layer}", str(layer))
