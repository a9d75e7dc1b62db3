"""What a model's `generation_config.json` says about fields that a request leaves out."""

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inlay.core.text_files import read_json_object
from inlay.serve.openai.sampling import SamplingDefaults

log = logging.getLogger(__name__)

GENERATION_CONFIG = "generation_config.json"


@dataclass(frozen=True)
class _Range:
    """The values that requests may have for a field, too.

    Attributes:
        field: of `SamplingDefaults`.
        whole: it is a whole number.
        above: `low` itself is not allowed.
    """

    field: str
    low: float
    high: float
    whole: bool = False
    above: bool = False

    def holds(self, value: Any) -> bool:
        """Whether a value is allowed."""
        kinds = int if self.whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
            return False
        return self.low <= value <= self.high and not (self.above and value == self.low)

    def __str__(self) -> str:
        number = "a whole number" if self.whole else "a number"
        if self.above:
            return f"{number} above {self.low:g} and at most {self.high:.10g}"
        return f"{number} in {self.low:g}..{self.high:.10g}"


_RANGES = {
    "temperature": _Range("temperature", 0, 100),
    "top_p": _Range("top_p", 0, 1, above=True),
    "top_k": _Range("top_k", -1, 2**31 - 1, whole=True),
    "min_p": _Range("min_p", 0, 1),
    "repetition_penalty": _Range("repetition_penalty", 0, 1000, above=True),
    "max_new_tokens": _Range("max_tokens", 1, 2**31 - 1, whole=True),
}


def sampling_defaults(directory: Path) -> SamplingDefaults:
    """Read the file of a model's directory; without one the protocol's own defaults hold.

    A value that no request may have is left out with a warning.

    Raises:
        ModelFileError: the file is no JSON object.
    """
    file = directory / GENERATION_CONFIG
    if not file.is_file():
        return SamplingDefaults()
    found = read_json_object(file)
    values: dict[str, Any] = {}
    for key, allowed in _RANGES.items():
        value = found.get(key)
        if value is None:
            continue
        if allowed.holds(value):
            values[allowed.field] = value if allowed.whole else float(value)
        else:
            log.warning("%s: %s is %r, which is left out: it must be %s", file, key, value, allowed)
    if values.get("top_k") == -1:
        values["top_k"] = 0  # both are all tokens
    return SamplingDefaults(**values)
