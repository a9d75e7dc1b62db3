"""What the host and the devices have of the mixture layers, step by step.

    share = HostShare(shape, mixtures, config)
    with share.step(batch) as step:
        step.mix(ops, mixture, x_TM, ids_TK, routing_TK, out_TM, activation=..., shared=...)

Shapes: T tokens, L mixture layers that the host shares, E experts.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from inlay import kernels
from inlay.core.clock import SystemClock
from inlay.core.model_shape import ModelShape
from inlay.core.placement import CPU, PrefillAt
from inlay.experts import Residency
from inlay.experts.streaming import StreamChoice
from inlay.models.batch import ForwardBatch
from inlay.models.expert_mover import ExpertMover
from inlay.models.expert_stream import ExpertStream
from inlay.models.hand_over import HandOverLine, Residents, activation_of, fill_first
from inlay.models.host_step import HostStep
from inlay.models.memory import device_memory_errors
from inlay.models.ops import Ops

log = logging.getLogger(__name__)

STREAM_BYTES = 1 << 30
"""Of a device, for experts that come there for a step."""

_RELIEF_SHARE = 0.25  # of the layers that keep experts on a device, when its memory runs out


@dataclass(frozen=True)
class SharedMixture:
    """A mixture layer of which the host has some: its experts, its device, and those there."""

    host: kernels.ExpertWeights
    ops: Ops
    residents: Residents | None
    prefill: PrefillAt = "auto"


@dataclass(frozen=True, kw_only=True)
class ShareConfig:
    """How experts are shared.

    Attributes:
        deferred: how many host experts of a token that decodes may be added one layer later.
        moves_per_s: bytes of experts that may come to devices each second; 0: none move.
        stream: prompt tokens of a step from which devices get the host's experts for it, `auto` as
            soon as that is quicker, 0 never.
        stream_bytes: memory of each device for them.
    """

    deferred: int = 0
    moves_per_s: int = 0
    stream: Literal["auto"] | int = 0
    stream_bytes: int = STREAM_BYTES


class HostShare:
    """Experts of the host for layers of devices.

    Args:
        mixtures: by number among the mixture layers.
        sliced: devices keep a rank's part of each expert.

    Attributes:
        deferred: see `ShareConfig`; it may be changed between steps.
        residency: which experts devices keep.
        mover: changes that; None where there is nothing to change.
        activations: of tokens that decoded, by `device` and `host`: who computed the experts.
        host_s: seconds that the host has computed immediate experts, in all steps.
        version: another one when layers have lost the experts that a device kept.
    """

    def __init__(
        self,
        shape: ModelShape,
        mixtures: dict[int, SharedMixture],
        config: ShareConfig,
        *,
        sliced: bool = False,
    ) -> None:
        self._sliced = sliced
        self.deferred = config.deferred
        self.activations = {"device": 0, "host": 0}
        self.host_s, self.version = 0.0, 0
        self._shape, self._config = shape, config
        # Nobody else keeps residents: relief gives their memory back.
        self._layers = [replace(one, residents=None) for one in mixtures.values()]
        self._places = {mixture: place for place, mixture in enumerate(mixtures)}
        self._numbers = [shape.sparse_layers[mixture] for mixture in mixtures]
        self._devices = {one.ops.device: one.ops for one in self._layers}
        self._residents_L = [one.residents for one in mixtures.values()]
        self._counts_LE = np.zeros((len(mixtures), shape.experts), np.uint32)
        self._line: HandOverLine | None = None
        self._clock = SystemClock()
        self._choice = StreamChoice(config.stream)
        self.residency = Residency(
            [one.slots if one is not None else 0 for one in self._residents_L], shape.experts
        )
        self._fill()
        self._streams = self._make_streams()
        self.mover: ExpertMover | None = None
        if config.moves_per_s and self._keeping():
            self.mover = ExpertMover(
                self.residency,
                self._residents_L,
                self._expert_bytes,
                config.moves_per_s,
                self._clock,
            )

    @property
    def _expert_bytes(self) -> int:
        return max(one.host.nbytes for one in self._layers) // self._shape.experts

    def has(self, mixture: int) -> bool:
        """Whether the host shares a mixture layer."""
        return mixture in self._places

    def may_stream(self, mixture: int) -> bool:
        """Whether a layer's device may get the host's experts for a step with adapters."""
        if self._sliced or not self._choice.possible:
            return False
        return self._places[mixture] in self._streamable

    def _fill(self) -> None:
        """The first experts of each layer, as long as nobody knows better."""
        for place, residents in enumerate(self._residents_L):
            if residents is not None:
                for slot in range(residents.slots):
                    self.residency.put(place, slot, slot)
                fill_first(residents, self.residency.slot_of_LE.shape[1])

    @contextmanager
    def step(
        self, batch: ForwardBatch, line: HandOverLine | None = None, *, trial: bool = False
    ) -> Iterator[HostStep]:
        """The host waits for the layers of a step, and has answered all when it is over.

        Args:
            line: one that `new_line` made, for a step without prompts; None: as steps need it.
            trial: the same step comes again, and is counted then; no expert moves in between.

        Raises:
            InlayError: the host's part failed.
        """
        rows = len(batch.token_ids_T)
        decode_T = batch.decode_T if batch.decode_T is not None else np.zeros(rows, np.bool_)
        prompts = rows - int(decode_T.sum())
        began, streamed = self._clock.now(), self._start_streams(prompts, batch)
        on_host_LE = ~self.residency.resident_LE
        alone = prompts == rows and len(streamed) == len(self._layers)
        line = None if alone else line or self._line_for(rows)
        if line is not None:
            before_s = line.host.immediate_s
            line.begin(on_host_LE, decode_T, self.deferred, self._adapters_of(batch))
        try:
            yield HostStep(
                line, self._places, self._residents_L, streamed, self._streams, ~decode_T
            )
            # They may have taken all there is to do, and have done none of it: the next step clears
            # the words for which they wait now. One that failed says so here, and asks no more.
            for ops in self._devices.values():
                ops.settle()
        except BaseException:
            for stream in self._streams.values():
                stream.stop()
            if line is not None:
                line.abort()
            self._settle()
            raise
        if line is not None:
            line.end()
            self.host_s += line.host.immediate_s - before_s
            line.host.take_counts(self._counts_LE)
            if not trial:
                self._count(on_host_LE)
        if prompts == rows:
            took_s = self._clock.now() - began
            self._choice.observe(prompts, streamed=bool(streamed), seconds=took_s)

    def _adapters_of(
        self, batch: ForwardBatch
    ) -> Sequence[Sequence[tuple[kernels.ExpertAdapter | None, None, int, int]]]:
        """What they add to the experts of each layer that the host shares."""
        if not batch.adapters:
            return ()
        return [
            [(of.adapter.layers[n].host_experts, None, of.first, of.end) for of in batch.adapters]
            for n in self._numbers
        ]

    def _count(self, on_host_LE: NDArray[np.bool_]) -> None:
        self.activations["host"] += int(self._counts_LE[on_host_LE].sum())
        self.activations["device"] += int(self._counts_LE[~on_host_LE].sum())
        if self.mover is not None:
            self.mover.between_steps(self._counts_LE)

    def _settle(self) -> None:
        """What a failed step left to the devices must not meet the next one's rows."""
        for ops in self._devices.values():
            try:
                ops.settle()
            except Exception as error:
                log.info("%s, after a step that failed: %r", ops.name, error)

    def _line_for(self, rows: int) -> HandOverLine:
        if self._line is None or rows > self._line.max_rows:
            self._line = None  # its memory first
            self._line = self._new_line(1 << (rows - 1).bit_length())
        return self._line

    def new_line(self, rows: int) -> HandOverLine:
        """One for recorded steps of so many rows, in all of which the device has its addresses."""
        return self._new_line(rows, all_rows=True)

    def _new_line(self, rows: int, *, all_rows: bool = False) -> HandOverLine:
        return HandOverLine(
            [one.host for one in self._layers],
            activation_of(self._shape.activation),
            max_rows=rows,
            per_token=self._shape.experts_per_token,
            page_locked=any(device.startswith("cuda") for device in self._devices),
            all_rows=all_rows,
        )

    def _make_streams(self) -> dict[str, ExpertStream]:
        """One for each device that may get the host's experts for a step."""
        if not self._choice.possible:
            return {}
        slots = max(1, self._config.stream_bytes // 2 // self._expert_bytes)
        streams: dict[str, ExpertStream] = {}
        try:
            for place in self._streamable:
                ops = self._layers[place].ops
                if ops.device not in streams:
                    hosts = [one.host for one in self._layers]
                    streams[ops.device] = ExpertStream(ops, hosts, min(slots, self._shape.experts))
        except device_memory_errors() as error:
            log.warning("experts do not come to devices for long prompts: %s", error)
            return {}
        if streams:
            each_s = max(stream.seconds_per_expert() for stream in streams.values())
            host_experts = int((~self.residency.resident_LE)[self._streamable].sum())
            self._choice.bring_s = each_s * host_experts
        return streams

    @property
    def _streamable(self) -> list[int]:
        """Layers whose prompts the device may compute."""
        return [
            place
            for place, one in enumerate(self._layers)
            if one.ops.device != CPU and one.prefill != "host"
        ]

    def _start_streams(self, prompts: int, batch: ForwardBatch) -> frozenset[int]:
        """Have experts come for a step. Returns the layers that get them."""
        if not self._streams or not prompts:
            return frozenset()
        if self._sliced and batch.adapters:
            return frozenset()  # whole experts would come, and adapters there are parts
        wanted = self._streamable
        if not self._choice.streams(prompts):
            wanted = [place for place in wanted if self._layers[place].prefill == "device"]
        for device, stream in self._streams.items():
            own = [place for place in wanted if self._layers[place].ops.device == device]
            on_host_LE = ~self.residency.resident_LE
            stream.start([(place, np.flatnonzero(on_host_LE[place])) for place in own])
        return frozenset(wanted)

    @property
    def layers(self) -> int:
        """Mixture layers of which the host has some."""
        return len(self._layers)

    def _keeping(self) -> list[int]:
        return [place for place, one in enumerate(self._residents_L) if one is not None]

    def relieve(self) -> bool:
        """Give memory of devices back: that of experts that come for a step, then a quarter of the
        layers' experts. False: there is none.
        """
        if self._streams:
            for stream in self._streams.values():
                stream.close()
            self._streams = {}
            log.warning("a device ran out of memory: no experts come there for long prompts")
            return True
        keeping = self._keeping()
        if not keeping:
            return False
        given = keeping[-max(1, int(len(keeping) * _RELIEF_SHARE)) :]
        for place in given:
            if self.mover is not None:
                self.mover.drop(place)
            self.residency.drop(place)
            self._residents_L[place] = None
        self.version += 1
        log.warning(
            "a device ran out of memory: the experts of %d of %d layers leave it",
            len(given),
            len(keeping),
        )
        return True

    def close(self) -> None:
        """End helper threads."""
        if self.mover is not None:
            self.mover.close()
        for stream in self._streams.values():
            stream.close()
