"""What the host and the devices have of the mixture layers, step by step.

    share = HostShare(shape, mixtures, devices, page_locked=False)
    with share.step(batch) as step:
        place, experts = step.part(mixture, on_device)

Shapes: T tokens, L mixture layers that the host shares, E experts.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from inlay import kernels
from inlay.core.clock import SystemClock
from inlay.core.model_shape import ModelShape
from inlay.experts import Residency
from inlay.models.batch import ForwardBatch
from inlay.models.expert_mover import ExpertMover
from inlay.models.hand_over import HandOverLine, Residents, activation_of
from inlay.models.ops import Experts, Ops

log = logging.getLogger(__name__)

_RELIEF_SHARE = 0.25  # of the layers that keep experts on a device, when its memory runs out


@dataclass(frozen=True)
class SharedMixture:
    """A mixture layer of which the host has some: its experts, and those on its device."""

    host: kernels.ExpertWeights
    residents: Residents | None


@dataclass(frozen=True)
class HostStep:
    """One step. A layer has its place on the line, or none: then its device has all of it."""

    line: HandOverLine
    places: dict[int, int]
    residents_L: Sequence[Residents | None]

    def part(self, mixture: int, own: Experts | None) -> tuple[int | None, Experts | None]:
        """Where a layer asks the host, and what its device computes itself."""
        place = self.places.get(mixture)
        return place, own if place is None else self.residents_L[place]


class HostShare:
    """Experts of the host for layers of devices.

    Args:
        mixtures: by number among the mixture layers.
        devices: that have layers.
        page_locked: devices copy by themselves.
        moves_per_s: bytes of experts that may come to devices each second; 0: none move.

    Attributes:
        deferred: how many host experts of a token that decodes may be added one layer later.
        residency: which experts devices keep.
        mover: changes that; None where there is nothing to change.
        activations: of tokens that decoded, by `device` and `host`: who computed the experts.
    """

    def __init__(
        self,
        shape: ModelShape,
        mixtures: dict[int, SharedMixture],
        devices: Sequence[Ops],
        *,
        page_locked: bool,
        deferred: int = 0,
        moves_per_s: int = 0,
    ) -> None:
        self.deferred = deferred
        self.activations = {"device": 0, "host": 0}
        self._shape, self._devices, self._page_locked = shape, devices, page_locked
        self._places = {mixture: place for place, mixture in enumerate(mixtures)}
        self._host_L = [one.host for one in mixtures.values()]
        self._residents_L = [one.residents for one in mixtures.values()]
        self._counts_LE = np.zeros((len(mixtures), shape.experts), np.uint32)
        self._line: HandOverLine | None = None
        self.residency = Residency(
            [one.slots if one is not None else 0 for one in self._residents_L], shape.experts
        )
        self._fill()
        self.mover: ExpertMover | None = None
        if moves_per_s and self._keeping():
            self.mover = ExpertMover(
                self.residency,
                self._residents_L,
                max(one.nbytes for one in self._host_L) // shape.experts,
                moves_per_s,
                SystemClock(),
            )

    def _fill(self) -> None:
        """The first experts of each layer, as long as nobody knows better."""
        for place, residents in enumerate(self._residents_L):
            if residents is not None:
                for slot in range(residents.slots):
                    residents.fill(slot, slot)
                    self.residency.put(place, slot, slot)
                residents.show(self.residency.slot_of_LE[place])

    @contextmanager
    def step(self, batch: ForwardBatch) -> Iterator[HostStep]:
        """The host waits for the layers of a step, and has answered all when it is over.

        Raises:
            InlayError: the host's part failed.
        """
        rows = len(batch.token_ids_T)
        decode_T = batch.decode_T if batch.decode_T is not None else np.zeros(rows, np.bool_)
        line, on_host_LE = self._line_for(rows), ~self.residency.resident_LE
        line.begin(on_host_LE, decode_T, self.deferred)
        try:
            yield HostStep(line, self._places, self._residents_L)
        except BaseException:
            line.abort()
            self._settle()
            raise
        line.end()
        line.host.take_counts(self._counts_LE)
        self.activations["host"] += int(self._counts_LE[on_host_LE].sum())
        self.activations["device"] += int(self._counts_LE[~on_host_LE].sum())
        if self.mover is not None:
            self.mover.between_steps(self._counts_LE)

    def _settle(self) -> None:
        """What a failed step left to the devices must not meet the next one's rows."""
        for ops in self._devices:
            try:
                ops.settle()
            except Exception as error:
                log.info("%s, after a step that failed: %r", ops.name, error)

    def _line_for(self, rows: int) -> HandOverLine:
        if self._line is None or rows > self._line.max_rows:
            self._line = None  # its memory first
            self._line = HandOverLine(
                self._host_L,
                activation_of(self._shape.activation),
                max_rows=1 << (rows - 1).bit_length(),
                per_token=self._shape.experts_per_token,
                page_locked=self._page_locked,
            )
        return self._line

    @property
    def host_s(self) -> float:
        """Seconds that the host has computed immediate experts, in all steps of this size."""
        return 0.0 if self._line is None else self._line.host.immediate_s

    @property
    def layers(self) -> int:
        """Mixture layers of which the host has some."""
        return len(self._host_L)

    def _keeping(self) -> list[int]:
        return [place for place, one in enumerate(self._residents_L) if one is not None]

    def relieve(self) -> bool:
        """Give memory of devices back, a quarter of the layers' experts; False: there is none."""
        keeping = self._keeping()
        if not keeping:
            return False
        given = keeping[-max(1, int(len(keeping) * _RELIEF_SHARE)) :]
        for place in given:
            if self.mover is not None:
                self.mover.drop(place)
            self.residency.drop(place)
            self._residents_L[place] = None
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
