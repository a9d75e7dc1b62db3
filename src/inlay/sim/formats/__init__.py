"""Files to traces, and back: `read` knows all formats, `write` writes Mooncake's."""

from inlay.sim.formats.mooncake import write
from inlay.sim.formats.reading import FORMATS, read, read_chunks

__all__ = ["FORMATS", "read", "read_chunks", "write"]
