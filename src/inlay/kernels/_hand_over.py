"""The seam between a device and the routed experts that the host computes for it.

For each mixture layer the device writes its tokens' rows, chosen experts and routing weights into
host memory and sets a word, *asked*; the host computes, writes the sums and sets a second word,
*answered*, for which the device's stream waits. One call starts a whole step, which the kernels'
asynchronous thread then walks through: no Python runs in between, no driver calls back, and a
device may replay the step from a recording. Which library moves the bytes is not known here.
"""

from collections.abc import Sequence
from typing import Any

from inlay.kernels import _backend
from inlay.kernels._adapters import ExpertAdapter
from inlay.kernels._arrays import Array
from inlay.kernels._moe import SILU, Activation, ExpertWeights
from inlay.kernels._pending import Pending


class HandOver:
    """Host experts of the mixture layers of one device.

    Layer j of `layers` uses slot j % 2 of each buffer. For a GPU the buffers are page-locked. Both
    sides share them, by these rules:

    - before it asks for layer j, the device has written slot j % 2 of `x`, `ids` and `routing`, and
      has taken the answer of layer j - 1;
    - it asks for the layers in their order, and takes `out` of a layer once that is answered;
    - `begin` comes before the step's first question and after the last step's last answer was
      taken.

    Args:
        layers: experts of each layer, all of them though some may be resident; the same number E
            and hidden size M in all layers.
        x_2TM: float32. T is how many tokens a step may have.
        ids_2TK: int32, the experts chosen by each token; negative ids are skipped.
        routing_2TK: float32; weights of resident experts are not looked at.
        out_2TM: float32, writable: weighted sums of host experts, zeros for a token without.
        words_L2: uint32, writable: asked and answered, of each layer.
        activation: of all experts.

    The buffers are contiguous and apart, and stay the caller's; they are kept as long as this
    object or a step of it needs them. Dropping the object cancels the step under way.

    Raises:
        ArgumentError: a shape, dtype or layout is wrong; the message names the argument.

    Deferral: a token may get some of its host experts later, those of least routing weight (of
    equal ones the higher ids). They are computed after the answer of their layer, while the device
    goes on, and are added to the answer of the next layer here. At least two of a token's chosen
    experts are immediate, resident ones counted, and the last layer defers nothing.

    Tolerance: without deferral the bits of `moe` with `on_host_LE[j]` as its mask. With it, those
        of two such calls, the second of which adds to the deferred sum of the layer before.
    Cost: between two layers the host looks at the next word as long as threads spin (`spin_us`),
        then every 20 us to 1 ms, late by a sixteenth of the wait. Nothing is allocated in a step
        but what `moe` needs.
    Source: expert deferral of KTransformers (SOSP 2025), here chosen for each token by itself.
    """

    def __init__(
        self,
        layers: Sequence[ExpertWeights],
        x_2TM: Array,
        ids_2TK: Array,
        routing_2TK: Array,
        out_2TM: Array,
        words_L2: Array,
        *,
        activation: Activation = SILU,
    ) -> None:
        self._native: Any = _backend.ops.HandOver(
            layers,
            x_2TM,
            ids_2TK,
            routing_2TK,
            out_2TM,
            words_L2,
            activation.alpha,
            activation.limit,
            activation.up_offset,
        )

    def begin(
        self,
        rows: int,
        *,
        on_host_LE: Array,
        deferred_T: Array | None = None,
        counted_T: Array | None = None,
        timeout_s: float = 60.0,
        adapters: Sequence[Sequence[tuple[ExpertAdapter | None, None, int, int]]] = (),
    ) -> Pending:
        """Start a step: clear the words, return at once; its layers are walked beside the caller.

        Args:
            rows: tokens of the step, 0 to T: the first ones of each slot.
            on_host_LE: bool or uint8, which experts the host computes; copied.
            deferred_T: int32 `[rows]`, how many host experts each token defers at most; copied.
                None: none.
            counted_T: bool or uint8 `[rows]`, which tokens `take_counts` counts; copied. None: all.
            timeout_s: how long the device may take to ask for a layer, 0 to 10^6.
            adapters: of each layer, as `moe` takes them; empty: none. Immediate and deferred
                experts get what they add; kept until the step is over.

        Raises:
            ArgumentError: an argument is wrong, or the step before is not done.
            ResourceError: the system refuses the thread.

        The Pending raises what went wrong on the way: ArgumentError for an id that is not below E,
        or a routing weight of a host expert that is not finite, WaitTimeoutError when the device
        did not ask, EngineError after `cancel`. Then `out` is zero in the step's rows and all words
        say answered, so the device's stream goes on; what it computes is of no use.
        """
        pending: Pending = self._native.begin(
            rows, on_host_LE, deferred_T, counted_T, timeout_s, adapters
        )
        return pending

    def cancel(self) -> None:
        """End the step under way before its next layer, if there is one. Returns at once."""
        self._native.cancel()

    def ask(self, layer: int) -> None:
        """Set the word *asked*, as a device does that shares the host's memory."""
        self._native.ask(layer)

    def wait_answer(self, layer: int, timeout_s: float) -> None:
        """Return once the layer is answered.

        Raises:
            WaitTimeoutError: it was not in this time, 0 to 10^6 s.
        """
        self._native.wait_answer(layer, timeout_s)

    def take_counts(self, out_LE: Array) -> None:
        """Write how often each expert was chosen since the last call, resident ones too.

        Args:
            out_LE: uint32, contiguous, writable. Layers that a step has not come to are missing.
        """
        self._native.take_counts(out_LE)

    @property
    def immediate_s(self) -> float:
        """Time of all steps from question to answer."""
        seconds: float = self._native.immediate_s
        return seconds

    @property
    def deferred_s(self) -> float:
        """Time of all steps for deferred experts."""
        seconds: float = self._native.deferred_s
        return seconds

    @property
    def busy_s(self) -> float:
        """Both."""
        return self.immediate_s + self.deferred_s
