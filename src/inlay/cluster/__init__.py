"""Several instances behind one address: who is there, and where each request goes."""

from inlay.cluster.prefix_index import PrefixIndex

__all__ = ["PrefixIndex"]
