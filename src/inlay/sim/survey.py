"""What is in a trace."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from inlay.sim.known_names import KnownNames
from inlay.sim.trace import Trace


def survey(parts: Iterable[Trace], known: KnownNames) -> dict[str, Any]:
    """Figures of a trace in parts, of which there is at least one.

    Args:
        known: was told of each part before it came here.
    """
    sums: Counter[str] = Counter()
    groups: Counter[str] = Counter()
    longest = np.zeros(2, np.int64)
    duration_s = 0.0
    for part in parts:
        sums.update(
            requests=len(part),
            inputs=int(part.input_tokens.sum()),
            outputs=int(part.output_tokens.sum()),
        )
        counts = np.bincount(part.group, minlength=len(part.groups)).tolist()
        groups.update(dict(zip(part.groups, counts, strict=True)))
        longest = np.maximum(longest, (part.input_tokens.max(), part.output_tokens.max()))
        duration_s = part.duration_s
    requests = sums["requests"]
    return {
        "requests": requests,
        "duration_s": duration_s,
        "requests_per_s": requests / duration_s if duration_s else None,
        "mean_input_tokens": sums["inputs"] / requests,
        "max_input_tokens": int(longest[0]),
        "mean_output_tokens": sums["outputs"] / requests,
        "max_output_tokens": int(longest[1]),
        "groups": dict(groups),
        "different_blocks": known.blocks - known.again,
        "reusable_share": known.again / known.blocks,
    }
