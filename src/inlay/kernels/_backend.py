"""Decides once per process who does the work: the compiled extension or the NumPy references."""

from typing import Any

from inlay.core.settings import read_settings
from inlay.kernels import reference

_settings = read_settings()

# The modules behind the doors: `inlay._native.kernels` or `inlay.kernels.reference`, and
# `inlay._native.block_hash` or the same reference.
ops: Any = reference
block_hash: Any = reference
# Why the references are in use, or None when the extension is.
problem: str | None = None

if not _settings.native:
    problem = "switched off by INLAY_NATIVE=0"
else:
    try:
        from inlay import _native
    except ImportError as error:
        problem = f"the compiled extension does not load: {error}"
    else:
        ops, block_hash = _native.kernels, _native.block_hash
        # Checked at the first kernel call, so that importing never fails.
        ops.request_isa(_settings.isa or "")

is_native = problem is None
