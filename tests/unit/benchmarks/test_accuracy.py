"""What kernels/accuracy calls an error."""

import numpy as np

from benchmarks.kernels.accuracy import Data, errors, exact_layer, to_bf16


def test_errors_are_those_of_groups_of_tokens() -> None:
    exact = np.array([[3.0, 0.0], [0.0, 4.0], [1.0, 0.0], [0.0, 0.0]])
    out = exact + [[0.0, 0.0], [0.0, 0.5], [0.25, 0.0], [0.0, 0.0]]
    assert errors(out, exact, 2) == [0.1, 0.25]


def test_the_exact_layer_is_the_weighted_sum_of_the_chosen_experts() -> None:
    one, two = (np.full((1, 1), value, np.float32) for value in (1.0, 2.0))
    data = Data(
        weights=[(one, one, one), (one, two, two)],
        x_TM=np.array([[1.0], [2.0]], np.float32),
        ids_TK=np.array([[0], [1]], np.int32),
        routing_TK=np.array([[0.5], [0.25]], np.float32),
    )

    def silu(x: float) -> float:
        return x / (1 + np.exp(-x))

    assert np.allclose(exact_layer(data)[:, 0], [0.5 * silu(1), 0.25 * 2 * silu(2) * 4])
    halved = exact_layer(data, [(one, one, one / 2), (one, two, one)])
    assert np.allclose(halved, exact_layer(data) / 2)


def test_bf16_rounds_to_the_nearest() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -3.14159], np.float32)
    assert to_bf16(values).tolist() == [1.0, 1.0, 1.015625, -3.140625]
