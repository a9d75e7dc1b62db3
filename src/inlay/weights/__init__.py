"""Weights of a model, from those who train it to all who serve it.

A publisher offers versions of a checkpoint; peers pull them from it and from each other, in pieces,
each compared with its checksum, and hold them for the next ones. Bytes are moved by
`inlay.transfer`. The package knows tensors by name, dtype and shape, no models and no engines, and
loads no torch.

Source: what it is for follows Mooncake's P2P Store and checkpoint-engine; pieces and their order
follow BitTorrent.
"""

from inlay.weights.directory_landing import DirectoryLanding
from inlay.weights.landing import Landing, MemoryLanding
from inlay.weights.layouts import tensor_parallel
from inlay.weights.live_tensors import Part
from inlay.weights.manifest import Entry, Manifest, check_label
from inlay.weights.offer import newest
from inlay.weights.parts_landing import PartsLanding, Want
from inlay.weights.publisher import Publisher
from inlay.weights.pull import Held, PullReport, pull
from inlay.weights.pull_config import PullConfig

__all__ = [
    "DirectoryLanding",
    "Entry",
    "Held",
    "Landing",
    "Manifest",
    "MemoryLanding",
    "Part",
    "PartsLanding",
    "Publisher",
    "PullConfig",
    "PullReport",
    "Want",
    "check_label",
    "newest",
    "pull",
    "tensor_parallel",
]
