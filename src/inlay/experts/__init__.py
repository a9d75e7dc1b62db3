"""Which routed experts lie in a device's memory and which the processors compute.

Decides, and moves nothing: `inlay.models` carries it out.
"""

from inlay.experts.hotness import Hotness, Move

__all__ = ["Hotness", "Move"]
