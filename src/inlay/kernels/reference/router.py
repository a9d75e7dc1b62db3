"""Choosing routed experts."""

from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.kernels._checks import array_of, check, check_apart, check_size


def router_topk(
    logits_TE: Any,
    top_k: int,
    normalize: bool,
    out_ids_TK: Any,
    out_weights_TK: Any,
    sigmoid: bool = False,
    correction_E: Any = None,
    groups: int = 1,
    groups_per_token: int = 1,
    best_two: bool = False,
    scale: float = 1.0,
) -> None:
    """The `top_k` most wanted in descending order, ties to the lower id."""
    logits = array_of(logits_TE, "logits_TE", 2)
    ids = array_of(out_ids_TK, "out_ids_TK", 2, np.int32, writable=True)
    weights = array_of(out_weights_TK, "out_weights_TK", 2, writable=True)
    experts = logits.shape[1]
    _check_groups(experts, top_k, groups, groups_per_token, best_two)
    check(isfinite(scale), f"scale: must be finite, got {scale}")
    correction = None
    if correction_E is not None:
        correction = array_of(correction_E, "correction_E", 1)
        check_size(correction, "correction_E", 0, experts, "experts of logits_TE")
    for name, array in (("out_ids_TK", ids), ("out_weights_TK", weights)):
        check_size(array, name, 0, logits.shape[0], "tokens of logits_TE")
        check_size(array, name, 1, top_k, "top_k")
    check_apart("out_ids_TK", ids, logits_TE=logits, out_weights_TK=weights)
    check_apart("out_weights_TK", weights, logits_TE=logits)
    if not len(logits):
        return
    scores = _sigmoids(logits) if sigmoid else _softmax(logits)
    wanted = scores if correction is None else scores + correction
    if groups > groups_per_token:
        grouped = wanted.reshape(len(wanted), groups, -1)
        best = np.sort(grouped, axis=2)[:, :, -2 if best_two else -1 :].sum(axis=2)
        chosen = np.argsort(-best, axis=1, kind="stable")[:, :groups_per_token]
        closed = np.ones(best.shape, bool)
        np.put_along_axis(closed, chosen, False, axis=1)
        wanted = np.where(closed[:, :, None], -np.inf, grouped).reshape(wanted.shape)
    ids[:] = np.argsort(-wanted, axis=1, kind="stable")[:, :top_k]
    weights[:] = np.take_along_axis(scores, ids, axis=1)
    if normalize:
        weights /= weights.sum(axis=1, keepdims=True) + (np.float32(1e-20) if sigmoid else 0)
    weights *= np.float32(scale)


def _check_groups(
    experts: int, top_k: int, groups: int, groups_per_token: int, best_two: bool
) -> None:
    check(
        1 <= groups <= experts and experts % groups == 0,
        f"groups: must divide the {experts} experts of logits_TE, got {groups}",
    )
    check(
        1 <= groups_per_token <= groups,
        f"groups_per_token: must be in 1..{groups} (groups), got {groups_per_token}",
    )
    check(
        not best_two or groups == groups_per_token or experts >= 2 * groups,
        f"groups: {groups} of {experts} experts leave groups of one, whose best two count",
    )
    most = experts // groups * groups_per_token
    check(
        1 <= top_k <= most,
        f"top_k: must be in 1..{most} (the experts of groups_per_token), got {top_k}",
    )


def _softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    largest = logits.max(axis=1, keepdims=True)
    check(
        bool(np.isfinite(largest).all()),
        "logits_TE: a row has no softmax: it holds a NaN or +infinity, or -infinity alone",
    )
    exponentials = np.exp(logits - largest)
    result: npt.NDArray[np.float32] = exponentials / exponentials.sum(axis=1, keepdims=True)
    return result


def _sigmoids(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    check(not np.isnan(logits).any(), "logits_TE: a row holds a NaN")
    with np.errstate(over="ignore"):
        result: npt.NDArray[np.float32] = np.float32(1) / (np.float32(1) + np.exp(-logits))
    return result
