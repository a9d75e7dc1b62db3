"""Small files of packed weights from weights that are in memory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from inlay import kernels


def write_packed(
    path: Path, weights: Mapping[str, Any], metadata: Mapping[str, Any] | None = None
) -> None:
    """Write linear weights, experts and arrays under their names."""
    layout = kernels.PackedLayout(metadata)
    with path.open("w+b", buffering=0) as file:
        for name, weight in weights.items():
            match weight:
                case np.ndarray():
                    parts = layout.add_array(name, weight.dtype.name, weight.shape)
                    content = {"data": [np.ascontiguousarray(weight)]}
                case kernels.LinearWeight():
                    parts = layout.add_linear(name, *weight.shape, weight.format)
                    content = {"panels": [weight.panels()]}
                case _:
                    sizes = (weight.num_experts, weight.hidden, weight.intermediate)
                    biases = weight.biases()
                    parts = layout.add_experts(
                        name, *sizes, weight.format, biases=biases is not None
                    )
                    of_each = [weight.panels(expert) for expert in range(sizes[0])]
                    content = {
                        key: [panels[index] for panels in of_each]
                        for index, key in enumerate(("gate_up", "down"))
                    }
                    content |= {} if biases is None else {"biases": [biases]}
            for key, part in parts.items():
                data = b"".join(one.tobytes() for one in content[key])
                assert len(data) == part.size
                file.seek(part.offset)
                file.write(data)
        layout.seal(file.fileno())
