"""kernels/moe: one layer of routed experts beside the roofline and other systems' layers.

Every side of a triple gets the same routing, new in each call. A side is the median of a few calls
where one call is short. For each shape and number of bits, the peers run side by side, each in a
process of its own that answers when it is asked.
"""

import contextlib
import statistics
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.case import Run
from benchmarks.kernels import limits
from benchmarks.kernels.layers import LayerShape, OurLayers, expected_touched, routings
from benchmarks.kernels.peer_layers import PeerFailed, PeerKind, PeerLayer
from benchmarks.triples import Comparison, Limit, Side
from inlay import kernels
from inlay.core.weight_format import format_named

Params = Mapping[str, Any]
PeerAt = tuple[PeerLayer, Sequence[int]]  # and the tokens it is asked for
TOKENS_PER_SIDE = 16  # shorter calls are repeated
MAX_CALLS = 8


def measure(run: Run) -> Generator[Comparison, None, None]:
    """One comparison per shape, format and number of tokens."""
    points = [p for p in run.params("forward") if p["isa"] == kernels.selected_isa()]
    shares = [p for p in run.params("share_of_int8") if p["isa"] == kernels.selected_isa()]
    for shape, of_shape in grouped(points, LayerShape.of):
        int8 = None
        for bits, of_bits in grouped(of_shape, lambda params: bits_of(params["format"])):
            with contextlib.ExitStack() as stack:
                peers = start_peers(run, stack, shape, bits)
                for weight_format, chosen in grouped(of_bits, lambda params: params["format"]):
                    ours = OurLayers(shape, weight_format, run.seeds[0])
                    int8 = ours if weight_format == "int8" else int8
                    for params in chosen:
                        beside = int8 if params in shares else None
                        yield compare(run, shape, ours, params, peers, beside)
                    del ours


def grouped(
    points: Sequence[Params], key: Callable[[Params], Any]
) -> Iterator[tuple[Any, list[Params]]]:
    """Points by key, keys in their order of appearance."""
    keys = list(dict.fromkeys(map(key, points)))
    return ((value, [point for point in points if key(point) == value]) for value in keys)


def bits_of(weight_format: str) -> int:
    """Bits of a weight without its scales."""
    return format_named(weight_format).bits


def start_peers(
    run: Run, stack: contextlib.ExitStack, shape: LayerShape, bits: int
) -> list[PeerAt]:
    """The declared peers of this number of bits; those that cannot run say why and are left out."""
    started: list[PeerAt] = []
    if run.peers is None:
        return started
    for declared in run.workload["peers"]:
        about = dict(declared)
        tokens = about.pop("tokens")
        if about.pop("bits") != bits or shape.hidden not in about.pop("hidden", [shape.hidden]):
            continue
        try:
            peer = PeerLayer(run.peers, PeerKind(**about), shape.sizes, kernels.num_threads())
        except PeerFailed as error:
            print(f"peer left out: {error}", file=sys.stderr)
            continue
        started.append((stack.enter_context(peer), tokens))
    return started


def compare(
    run: Run,
    shape: LayerShape,
    ours: OurLayers,
    params: Params,
    peers: Sequence[PeerAt],
    int8: OurLayers | None,
) -> Comparison:
    """The sides of one point; each has made one call before it is handed out."""
    tokens = params["tokens"]
    calls = min(MAX_CALLS, max(1, TOKENS_PER_SIDE // tokens))

    def side(layer: OurLayers | PeerLayer) -> Callable[[], float]:
        drawn = routings(shape, tokens, calls, run.seeds[0])
        layer.milliseconds(*next(drawn))
        return lambda: statistics.median(layer.milliseconds(*next(drawn)))

    forward = side(ours)
    ours_side: Side = forward
    if int8:
        beside = side(int8)

        def with_share() -> dict[str, float]:
            reference_ms, ms = beside(), forward()
            return {"forward": ms, "share_of_int8": reference_ms / ms}

        ours_side = with_share
    touched = expected_touched(shape, tokens)
    kind = limits.operand(params["format"])
    return Comparison(
        name=("forward", "share_of_int8") if int8 else "forward",
        params=params,
        ours=ours_side,
        limit=Limit(
            name=limits.NAME,
            measure=lambda: limits.roofline_ms(
                ours.nbytes * touched / shape.experts, shape.operations(tokens), kind
            ),
        ),
        peers={peer.label: side(peer) for peer, asked in peers if tokens in asked},
        seeds=run.seeds,
    )
