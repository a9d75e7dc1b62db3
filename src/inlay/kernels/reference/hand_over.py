"""Host experts of a step, computed where the device asks for them."""

import time
from collections.abc import Sequence
from math import inf
from threading import Condition
from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.core.errors import ArgumentError, EngineError, InlayError, WaitTimeoutError
from inlay.kernels._checks import array_of, check, check_apart, check_size
from inlay.kernels.reference.experts import ExpertWeights, check_adapters, moe
from inlay.kernels.reference.pending import Pending

I32 = npt.NDArray[np.int32]

_IMMEDIATE = 2
"""Chosen experts of a token that are never deferred, resident ones counted."""

_MAX_TIMEOUT_S = 1e6


def split_experts(
    ids_TK: I32,
    routing_TK: npt.NDArray[np.float32],
    on_host_E: npt.NDArray[Any],
    deferred_T: I32,
) -> tuple[I32, I32]:
    """What the host computes at once and what later; -1 for what is not in the set.

    A token defers its host experts of least weight, of equal ones the higher ids: as many as
    `deferred_T` says, but two of its chosen experts are not deferred.
    """
    immediate_TK, deferred_TK = np.full_like(ids_TK, -1), np.full_like(ids_TK, -1)
    for t, ids in enumerate(ids_TK):
        places = [k for k, i in enumerate(ids) if i >= 0 and on_host_E[i]]
        places.sort(key=lambda k: (-routing_TK[t, k], ids[k], k))
        chosen = int((ids >= 0).sum())
        deferred = min(int(deferred_T[t]), len(places), max(0, chosen - _IMMEDIATE))
        at_once, later = places[: len(places) - deferred], places[len(places) - deferred :]
        immediate_TK[t, at_once], deferred_TK[t, later] = ids[at_once], ids[later]
    return immediate_TK, deferred_TK


class HandOver:
    """The same words and buffers; `ask` computes before it returns."""

    def __init__(
        self,
        layers: Sequence[ExpertWeights],
        x_2TM: Any,
        ids_2TK: Any,
        routing_2TK: Any,
        out_2TM: Any,
        words_L2: Any,
        alpha: float = 1.0,
        limit: float = inf,
        up_offset: float = 0.0,
    ) -> None:
        check(len(layers) > 0, "layers: must be at least one")
        first = layers[0]
        for j, layer in enumerate(layers):
            check(isinstance(layer, ExpertWeights), f"layers: element {j} is no ExpertWeights")
            check(
                (layer.num_experts, layer.hidden) == (first.num_experts, first.hidden),
                f"layers: element {j} has {layer.num_experts} experts of hidden size "
                f"{layer.hidden}, the first one {first.num_experts} of {first.hidden}",
            )
        self._layers, self._activation = list(layers), (alpha, limit, up_offset)
        self._x = array_of(x_2TM, "x_2TM", 3)
        self._ids = array_of(ids_2TK, "ids_2TK", 3, np.int32)
        self._routing = array_of(routing_2TK, "routing_2TK", 3)
        self._out = array_of(out_2TM, "out_2TM", 3, writable=True)
        self._words = array_of(words_L2, "words_L2", 2, np.uint32, writable=True)
        buffers = {
            "x_2TM": self._x,
            "ids_2TK": self._ids,
            "routing_2TK": self._routing,
            "out_2TM": self._out,
            "words_L2": self._words,
        }
        for name, array in buffers.items():
            check(array.flags.c_contiguous, f"{name}: must be contiguous")
            if array.ndim == 3:
                check_size(array, name, 0, 2, "slots")
                check_size(array, name, 1, self._x.shape[1], "tokens of x_2TM")
        for name in ("x_2TM", "out_2TM"):
            check_size(buffers[name], name, 2, first.hidden, "the experts' hidden size")
        check_size(
            self._routing, "routing_2TK", 2, self._ids.shape[2], "experts per token of ids_2TK"
        )
        check_size(self._words, "words_L2", 0, len(layers), "one row per layer")
        check_size(self._words, "words_L2", 1, 2, "asked and answered")
        for name in ("out_2TM", "words_L2"):
            others = {other: array for other, array in buffers.items() if other != name}
            check_apart(name, buffers[name], **others)
        self._counts = np.zeros((len(layers), first.num_experts), np.uint32)
        self._changed = Condition()
        self._step: _Step | None = None
        self.immediate_s = self.deferred_s = 0.0

    def begin(
        self,
        rows: int,
        on_host_LE: Any,
        deferred_T: Any = None,
        counted_T: Any = None,
        timeout_s: float = 60.0,
        adapters: Sequence[Sequence[Any]] = (),
    ) -> Pending:
        """Clear the words."""
        check(0 <= rows <= self._x.shape[1], f"rows: must be in 0..{self._x.shape[1]}, got {rows}")
        on_host = array_of(on_host_LE, "on_host_LE", 2, (np.uint8, np.bool_))
        check_size(on_host, "on_host_LE", 0, len(self._layers), "layers")
        check_size(on_host, "on_host_LE", 1, self._layers[0].num_experts, "experts")
        deferred = np.zeros(rows, np.int32)
        if deferred_T is not None:
            deferred = array_of(deferred_T, "deferred_T", 1, np.int32)
            check_size(deferred, "deferred_T", 0, rows, "rows")
            check(bool((deferred >= 0).all()), "deferred_T: must be at least 0")
        counted = np.ones(rows, np.bool_)
        if counted_T is not None:
            counted = array_of(counted_T, "counted_T", 1, (np.uint8, np.bool_)) != 0
            check_size(counted, "counted_T", 0, rows, "rows")
        _check_timeout(timeout_s)
        check(
            len(adapters) in (0, len(self._layers)),
            f"adapters: must have an entry for each of the {len(self._layers)} layers, has "
            f"{len(adapters)}",
        )
        for layer, of_layer in zip(self._layers, adapters, strict=False):
            check_adapters(of_layer, rows, layer, None)
        with self._changed:
            if self._step is not None and not self._step.done:
                raise ArgumentError(
                    "begin: the step before is not done; wait for it, or cancel it and wait"
                )
            self._words[:] = 0
            self._step = _Step(
                self._changed, on_host != 0, deferred.copy(), counted.copy(), adapters
            )
        return self._step

    def ask(self, layer: int) -> None:
        """Set the word, and compute the layers that were asked for in their order."""
        self._check_layer(layer)
        with self._changed:
            self._words[layer, 0] = 1
            step = self._step
            while step is not None and not step.done and self._words[step.layer, 0]:
                try:
                    self._compute(step)
                except InlayError as error:
                    self._give_up(step, error)
            self._changed.notify_all()

    def _compute(self, step: "_Step") -> None:
        j, rows = step.layer, len(step.deferred_T)
        ids, routing = self._ids[j % 2, :rows], self._routing[j % 2, :rows]
        high = int(ids.max(initial=-1))
        count = self._layers[j].num_experts
        check(high < count, f"ids_2TK: id {high} in layer {j} is not below the {count} experts")
        np.add.at(self._counts[j], ids[(ids >= 0) & step.counted_T[:, None]], 1)
        here = (ids >= 0) & step.on_host_LE[j][np.maximum(ids, 0)]
        check(
            bool(np.isfinite(routing[here]).all()),
            f"routing_2TK: a weight in layer {j} is not finite",
        )
        last = j + 1 == len(self._layers)
        most = np.zeros_like(step.deferred_T) if last else step.deferred_T
        immediate, deferred = split_experts(ids, routing, step.on_host_LE[j], most)
        begin = time.perf_counter()
        self._moe(step, immediate, j % 2, step.carried)
        self._words[j, 1] = 1
        middle = time.perf_counter()
        self.immediate_s += middle - begin
        step.carried = bool((deferred >= 0).any())
        if step.carried:
            self._moe(step, deferred, (j + 1) % 2, False)
            self.deferred_s += time.perf_counter() - middle
        step.layer += 1
        step.done = last

    def _moe(self, step: "_Step", ids: I32, slot: int, accumulate: bool) -> None:
        j, rows = step.layer, len(ids)
        adapters = step.adapters[j] if step.adapters else ()
        x, routing, out = self._x[j % 2, :rows], self._routing[j % 2, :rows], self._out[slot, :rows]
        moe(
            x,
            self._layers[j],
            ids,
            routing,
            out,
            accumulate,
            None,
            *self._activation,
            adapters=adapters,
        )

    def _give_up(self, step: "_Step", error: InlayError) -> None:
        self._out[:, : len(step.deferred_T)] = 0
        self._words[:, 1] = 1
        step.error, step.done = error, True

    def cancel(self) -> None:
        """End the step under way."""
        with self._changed:
            step = self._step
            if step is not None and not step.done:
                layers = f"layer {step.layer} of the {len(self._layers)} with host experts"
                self._give_up(step, EngineError(f"the step was cancelled before {layers}"))
            self._changed.notify_all()

    def wait_answer(self, layer: int, timeout_s: float) -> None:
        """Return once the word is set."""
        self._check_layer(layer)
        _check_timeout(timeout_s)
        with self._changed:
            if not self._changed.wait_for(lambda: self._words[layer, 1], timeout_s):
                raise WaitTimeoutError(f"layer {layer} was not answered after {timeout_s} s")

    def take_counts(self, out_LE: Any) -> None:
        """Activations since the last call."""
        out = array_of(out_LE, "out_LE", 2, np.uint32, writable=True)
        check_size(out, "out_LE", 0, self._counts.shape[0], "layers")
        check_size(out, "out_LE", 1, self._counts.shape[1], "experts")
        with self._changed:
            out[:] = self._counts
            self._counts[:] = 0

    def _check_layer(self, layer: int) -> None:
        most = len(self._layers) - 1
        check(0 <= layer <= most, f"layer: must be in 0..{most}, got {layer}")


class _Step(Pending):
    """Where a step is. The hand-over's lock guards it."""

    def __init__(
        self,
        changed: Condition,
        on_host_LE: npt.NDArray[np.bool_],
        deferred_T: I32,
        counted_T: npt.NDArray[np.bool_],
        adapters: Sequence[Sequence[Any]],
    ) -> None:
        self._changed, self.adapters = changed, adapters
        self.on_host_LE, self.deferred_T, self.counted_T = on_host_LE, deferred_T, counted_T
        self.layer = 0
        self.carried = False
        self.done = False
        self.error: InlayError | None = None

    def wait(self, timeout_s: float | None = None) -> None:
        """Return once all layers are done, which takes a device that asks."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.done, timeout_s):
                raise WaitTimeoutError(f"the step was not done after {timeout_s} s")
        if self.error is not None:
            raise self.error


def _check_timeout(timeout_s: float) -> None:
    check(
        0 <= timeout_s <= _MAX_TIMEOUT_S,
        f"timeout_s: must be in 0..{_MAX_TIMEOUT_S:g}, got {timeout_s}",
    )
