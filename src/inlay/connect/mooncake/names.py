"""Mooncake's `host:port` as Inlay's names, which have no colons."""

import re


def plain_name(segment: str) -> str:
    """The name of a node, or of an engine in a directory, for a `host:port`."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", segment)


def segment_of(node: str) -> str:
    """The `host:port` whose node has this name; other names as they are."""
    return re.sub(r"_(\d{1,5})$", r":\1", node)
