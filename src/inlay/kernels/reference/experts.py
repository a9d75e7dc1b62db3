"""Running the routed experts that were chosen."""

from collections.abc import Sequence
from math import inf, isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.core.errors import NotFiniteError
from inlay.core.weight_format import format_named
from inlay.kernels._checks import (
    F32,
    MAX_BYTES,
    array_of,
    check,
    check_apart,
    check_size,
    vector_of,
)
from inlay.kernels.reference.adapters import ExpertAdapter, check_rows
from inlay.kernels.reference.blocks import check_no_blocks, checked_blocks
from inlay.kernels.reference.formats import (
    PANEL,
    StoredRows,
    check_inner_size,
    check_scales,
    checked_quantized,
    panel_bytes,
    source_of,
)
from inlay.kernels.reference.linear import bytes_of
from inlay.kernels.reference.pending import Pending

_HALF = PANEL // 2
_Rows = tuple[ExpertAdapter | None, ExpertAdapter | None, int, int]


class ExpertWeights:
    """Gate, up and down matrices of one layer's experts in a format."""

    def __init__(
        self,
        num_experts: int,
        hidden: int,
        intermediate: int,
        format: str = "float32",
        bias: bool = False,
        down_format: str | None = None,
    ) -> None:
        sizes = {"num_experts": num_experts, "hidden": hidden, "intermediate": intermediate}
        for name, size in sizes.items():
            check(size >= 1, f"{name}: must be at least 1, got {size}")
        self.num_experts, self.hidden, self.intermediate = num_experts, hidden, intermediate
        named, of_down = format_named(format), format_named(down_format or format)
        check(
            (named.name == "float32") == (of_down.name == "float32"),
            f"down_format: '{of_down.name}' beside '{named.name}': all three matrices are float32 "
            "or none is",
        )
        check_inner_size(named, "hidden", hidden)
        check_inner_size(of_down, "intermediate", intermediate)
        gate_up = -(-intermediate // _HALF) * panel_bytes(named, hidden)
        down = -(-hidden // PANEL) * panel_bytes(of_down, intermediate)
        check(
            num_experts * max(gate_up, down, 4 * (2 * intermediate + hidden)) <= MAX_BYTES,
            f"num_experts: {num_experts} experts of these sizes take more than the 2^47 bytes "
            "that a process can address",
        )
        self.format, self.down_format = named.name, of_down.name
        # Gate and up rows, one after the other.
        self._gate_up = [
            StoredRows.zeros(2 * intermediate, hidden, named) for _ in range(num_experts)
        ]
        self._down = [StoredRows.zeros(hidden, intermediate, of_down) for _ in range(num_experts)]
        self._biases = (
            np.zeros((num_experts, 2 * intermediate + hidden), np.float32) if bias else None
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the panels and biases."""
        gate_up, down = self.panels(0)
        biases = 0 if self._biases is None else self._biases.nbytes
        return self.num_experts * (gate_up.nbytes + down.nbytes) + biases

    def _check_expert(self, expert: int) -> None:
        check(
            0 <= expert < self.num_experts,
            f"expert: must be in 0..{self.num_experts - 1}, got {expert}",
        )

    def set(
        self,
        expert: int,
        gate_FM: Any,
        up_FM: Any,
        down_MF: Any,
        gate_bias_F: Any = None,
        up_bias_F: Any = None,
        down_bias_M: Any = None,
    ) -> None:
        """Fill one expert."""
        self._check_expert(expert)
        f, m = self.intermediate, self.hidden
        shapes = {"gate_FM": (f, m), "up_FM": (f, m), "down_MF": (m, f)}
        for held in (self.format, self.down_format):
            check_no_blocks(format_named(held))
        sources = []
        for (name, shape), value in zip(shapes.items(), (gate_FM, up_FM, down_MF), strict=True):
            source = array_of(value, name, 2, (np.float32, np.uint16))
            for dim in range(2):
                check_size(source, name, dim, shape[dim], "the experts' size")
            sources.append((source_of(source, name), name))
        biases = self._checked_biases(gate_bias_F, up_bias_F, down_bias_M)
        self._gate_up[expert].set(slice(0, f), *sources[0])
        self._gate_up[expert].set(slice(f, 2 * f), *sources[1])
        self._down[expert].set(slice(0, m), *sources[2])
        self._set_biases(expert, biases)

    def set_quantized(
        self,
        expert: int,
        gate_q_FM: Any,
        gate_scales_FG: Any,
        up_q_FM: Any,
        up_scales_FG: Any,
        down_q_MF: Any,
        down_scales_MG: Any,
        gate_bias_F: Any = None,
        up_bias_F: Any = None,
        down_bias_M: Any = None,
    ) -> None:
        """Fill one expert with integers or small floats, and scales."""
        self._check_expert(expert)
        f, m = self.intermediate, self.hidden
        of_down = format_named(self.down_format)
        format = format_named(self.format)
        check_scales(format)
        check_scales(of_down)
        given = (
            (gate_q_FM, gate_scales_FG, ("gate_q_FM", "gate_scales_FG"), f, m, format),
            (up_q_FM, up_scales_FG, ("up_q_FM", "up_scales_FG"), f, m, format),
            (down_q_MF, down_scales_MG, ("down_q_MF", "down_scales_MG"), m, f, of_down),
        )
        sources = []
        for q, scales, names, rows, columns, format in given:
            sources.append(checked_quantized(q, scales, format, columns, names))
            check_size(sources[-1][0], names[0], 0, rows, "the experts' size")
        biases = self._checked_biases(gate_bias_F, up_bias_F, down_bias_M)
        self._gate_up[expert].set_quantized(slice(0, f), *sources[0])
        self._gate_up[expert].set_quantized(slice(f, 2 * f), *sources[1])
        self._down[expert].set_quantized(slice(0, m), *sources[2])
        self._set_biases(expert, biases)

    def set_blocks(
        self,
        expert: int,
        gate_FB: Any,
        up_FB: Any,
        down_MB: Any,
        gate_bias_F: Any = None,
        up_bias_F: Any = None,
        down_bias_M: Any = None,
    ) -> None:
        """Fill one expert with the blocks of a file."""
        self._check_expert(expert)
        f, m = self.intermediate, self.hidden
        format, of_down = format_named(self.format), format_named(self.down_format)
        given = (
            (gate_FB, "gate_FB", f, m, format),
            (up_FB, "up_FB", f, m, format),
            (down_MB, "down_MB", m, f, of_down),
        )
        sources = []
        for value, name, rows, columns, held in given:
            sources.append(checked_blocks(value, held, columns, name))
            check_size(sources[-1], name, 0, rows, "the experts' size")
        biases = self._checked_biases(gate_bias_F, up_bias_F, down_bias_M)
        self._gate_up[expert].set_blocks(slice(0, f), sources[0])
        self._gate_up[expert].set_blocks(slice(f, 2 * f), sources[1])
        self._down[expert].set_blocks(slice(0, m), sources[2])
        self._set_biases(expert, biases)

    def _checked_biases(
        self, gate_bias_F: Any, up_bias_F: Any, down_bias_M: Any
    ) -> list[tuple[slice, F32]]:
        f, m = self.intermediate, self.hidden
        ranges = {
            "gate_bias_F": (gate_bias_F, slice(0, f)),
            "up_bias_F": (up_bias_F, slice(f, 2 * f)),
            "down_bias_M": (down_bias_M, slice(2 * f, 2 * f + m)),
        }
        biases = []
        for name, (value, place) in ranges.items():
            bias = vector_of(value, name, place.stop - place.start)
            if bias is None:
                continue
            check(
                self._biases is not None,
                f"{name}: these experts were made without biases; make them with bias=True",
            )
            if not np.isfinite(bias).all():
                raise NotFiniteError(f"{name}: holds a NaN or an infinity; weights must be finite")
            biases.append((place, bias))
        return biases

    def _set_biases(self, expert: int, biases: list[tuple[slice, F32]]) -> None:
        for place, bias in biases:
            assert self._biases is not None
            self._biases[expert, place] = bias

    def copy(self, expert: int, source: "ExpertWeights", source_expert: int) -> None:
        """Take one of another's, as it is held there."""
        self._check_expert(expert)
        source._check_expert(source_expert)
        check(
            self._lies_as() == source._lies_as(),
            "source: has other sizes, or another format, than these experts",
        )
        self.set_panels(expert, *source.panels(source_expert))
        if self._biases is not None and source._biases is not None:
            self._biases[expert] = source._biases[source_expert]

    def _lies_as(self) -> tuple[object, ...]:
        has_biases = self._biases is not None
        return self.hidden, self.intermediate, self.format, self.down_format, has_biases

    def dequantize(self, expert: int) -> tuple[F32, F32, F32]:
        """Gate, up and down as products use them."""
        self._check_expert(expert)
        gate_up = self._gate_up[expert].values()
        f = self.intermediate
        return gate_up[:f].copy(), gate_up[f:].copy(), self._down[expert].values().copy()

    def biases(self) -> F32 | None:
        """`[experts][gate | up | down]`, or None."""
        return self._biases

    def panels(self, expert: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """The bytes of an expert's gate/up and down panels."""
        self._check_expert(expert)
        interleaved = self._gate_up[expert].taken(self._gate_up_rows())
        return interleaved.panels(), self._down[expert].panels()

    def copy_panels(self, expert: int, gate_up: Any, down: Any) -> None:
        """The same into uint8 arrays of the caller's, e.g. page-locked ones."""
        for name, to, panels in zip(
            ("gate_up", "down"), (gate_up, down), self.panels(expert), strict=True
        ):
            array = array_of(to, name, 1, np.uint8, writable=True)
            check_size(array, name, 0, len(panels), f"the bytes of {name} panels")
            array[:] = panels

    def set_panels(
        self, expert: int, gate_up: npt.NDArray[np.uint8], down: npt.NDArray[np.uint8]
    ) -> None:
        """The inverse of `panels`."""
        rows = self._gate_up_rows()
        interleaved = StoredRows.zeros(len(rows), self.hidden, format_named(self.format))
        interleaved.set_panels(gate_up)
        places = np.argsort(np.where(rows < 0, len(rows), rows), kind="stable")
        self._gate_up[expert] = interleaved.taken(places[: 2 * self.intermediate])
        self._down[expert].set_panels(down)

    def _gate_up_rows(self) -> npt.NDArray[np.int64]:
        """For each column of the panels its row: 32 of gate, the same 32 of up; -1 for none."""
        f = self.intermediate
        blocks = np.arange(-(-f // _HALF) * _HALF).reshape(-1, 1, _HALF)
        gate = np.where(blocks < f, blocks, -1)
        up = np.where(blocks < f, blocks + f, -1)
        return np.concatenate([gate, up], axis=1).reshape(-1)

    def apply(
        self,
        expert: int,
        x_TM: F32,
        alpha: float,
        limit: float,
        up_offset: float,
        adapters: Sequence[tuple[ExpertAdapter, slice]] = (),
    ) -> F32:
        """`down(activation(gate x, up x))` of one expert, with what adapters add to some rows."""
        f = self.intermediate
        gate_up = self._gate_up[expert].times(x_TM)
        for adapter, rows in adapters:
            gate_up[rows, :f] += adapter.of(expert, "gate", x_TM[rows])
            gate_up[rows, f:] += adapter.of(expert, "up", x_TM[rows])
        if self._biases is not None:
            gate_up = gate_up + self._biases[expert, : 2 * f]
        gate = np.minimum(gate_up[:, :f], np.float32(limit))
        up = np.clip(gate_up[:, f:], -np.float32(limit), np.float32(limit))
        with np.errstate(over="ignore"):
            sigmoid = 1 / (1 + np.exp(np.float32(-alpha) * gate))
        hidden = gate * sigmoid * (up + np.float32(up_offset))
        result: F32 = self._down[expert].times(hidden)
        for adapter, rows in adapters:
            result[rows] += adapter.of(expert, "down", hidden[rows])
        return result if self._biases is None else result + self._biases[expert, 2 * f :]


def map_experts(
    num_experts: int,
    hidden: int,
    intermediate: int,
    format: str,
    gate_up: Any,
    down: Any,
    biases: Any = None,
    down_format: str | None = None,
) -> ExpertWeights:
    """Experts from the bytes of their panels, copied here."""
    has_biases = biases is not None
    experts = ExpertWeights(num_experts, hidden, intermediate, format, has_biases, down_format)
    sizes = [part.nbytes for part in experts.panels(0)]
    parts = [
        bytes_of(value, name, num_experts * size).reshape(num_experts, size)
        for name, value, size in (("gate_up", gate_up, sizes[0]), ("down", down, sizes[1]))
    ]
    for expert in range(num_experts):
        experts.set_panels(expert, parts[0][expert], parts[1][expert])
    own = experts.biases()
    if own is not None:
        own[:] = bytes_of(biases, "biases", own.nbytes).view(np.float32).reshape(own.shape)
    return experts


def moe(
    x_TM: Any,
    experts: ExpertWeights,
    expert_ids_TK: Any,
    routing_TK: Any,
    out_TM: Any,
    accumulate: bool = False,
    expert_mask_E: Any = None,
    alpha: float = 1.0,
    limit: float = inf,
    up_offset: float = 0.0,
    shared: ExpertWeights | None = None,
    adapters: Sequence[_Rows] = (),
) -> None:
    """Shared experts, then the weighted routed ones, added in ascending id order."""
    x, out = array_of(x_TM, "x_TM", 2), array_of(out_TM, "out_TM", 2, writable=True)
    ids = array_of(expert_ids_TK, "expert_ids_TK", 2, np.int32)
    routing = array_of(routing_TK, "routing_TK", 2)
    check_size(x, "x_TM", 1, experts.hidden, "the experts' hidden size")
    check_size(ids, "expert_ids_TK", 0, x.shape[0], "tokens of x_TM")
    check_size(routing, "routing_TK", 0, x.shape[0], "tokens of x_TM")
    check_size(routing, "routing_TK", 1, ids.shape[1], "experts per token of expert_ids_TK")
    check_size(out, "out_TM", 0, x.shape[0], "tokens of x_TM")
    check_size(out, "out_TM", 1, experts.hidden, "the experts' hidden size")
    runs, mask = np.ones(experts.num_experts, np.bool_), None
    if expert_mask_E is not None:
        mask = array_of(expert_mask_E, "expert_mask_E", 1, (np.uint8, np.bool_))
        check_size(mask, "expert_mask_E", 0, experts.num_experts, "one value per expert")
        runs = mask != 0
    check(isfinite(alpha), f"activation.alpha: must be finite, got {alpha}")
    check(limit > 0, f"activation.limit: must be above 0 (infinity: none), got {limit}")
    check(isfinite(up_offset), f"activation.up_offset: must be finite, got {up_offset}")
    check(
        shared is None or shared.hidden == experts.hidden,
        f"shared: its hidden size is not that of experts, {experts.hidden}",
    )
    high = int(ids.max(initial=-1))
    check(
        high < experts.num_experts,
        f"expert_ids_TK: id {high} is not below the {experts.num_experts} experts",
    )
    here = (ids >= 0) & runs[np.maximum(ids, 0)]
    check(bool(np.isfinite(routing[here]).all()), "routing_TK: a weight is not finite")
    check_apart("out_TM", out, x_TM=x, expert_ids_TK=ids, routing_TK=routing, expert_mask_E=mask)
    check_adapters(adapters, len(x), experts, shared)
    if not accumulate:
        out[:] = 0
    activation = (alpha, limit, up_offset)
    every = np.arange(len(x))
    for expert in range(0 if shared is None else shared.num_experts):
        assert shared is not None
        out += shared.apply(expert, x, *activation, _rows_of(adapters, 1, every))
    for expert in np.unique(ids[here]):
        tokens, places = np.nonzero(ids == expert)
        added = _rows_of(adapters, 0, tokens)
        result = experts.apply(int(expert), x[tokens], *activation, added)
        np.add.at(out, tokens, routing[tokens, places, None] * result)


def check_adapters(
    adapters: Sequence[_Rows], rows: int, experts: ExpertWeights, shared: ExpertWeights | None
) -> None:
    """Raise unless they fit these experts, on rows apart and in order."""
    after = 0
    for *of_both, first, end in adapters:
        check_rows(first, end, after, rows)
        after = end
        for adapter, of in zip(of_both, (experts, shared), strict=True):
            if adapter is None:
                continue
            check(of is not None, "adapters: one adds to shared experts, but there are none")
            assert of is not None and isinstance(adapter, ExpertAdapter)
            sizes = (of.num_experts, of.hidden, of.intermediate)
            check(
                adapter.sizes == sizes,
                f"adapters: one is for experts of sizes {adapter.sizes}, but there are {sizes}",
            )


def _rows_of(
    adapters: Sequence[_Rows], kind: int, tokens: npt.NDArray[np.int64]
) -> list[tuple[ExpertAdapter, slice]]:
    """Adapters of a kind (0: routed, 1: shared), and where their tokens are among some."""
    found = []
    for routed, shared, first, end in adapters:
        adapter = (routed, shared)[kind]
        if adapter is not None:
            begin, behind = np.searchsorted(tokens, (first, end))
            found.append((adapter, slice(begin, behind)))
    return found


def submit_moe(
    x_TM: Any,
    experts: ExpertWeights,
    expert_ids_TK: Any,
    routing_TK: Any,
    out_TM: Any,
    accumulate: bool = False,
    expert_mask_E: Any = None,
    alpha: float = 1.0,
    limit: float = inf,
    up_offset: float = 0.0,
    shared: ExpertWeights | None = None,
) -> Pending:
    """`moe`, done before it returns."""
    arguments = (accumulate, expert_mask_E, alpha, limit, up_offset, shared)
    moe(x_TM, experts, expert_ids_TK, routing_TK, out_TM, *arguments)
    return Pending()
