"""Definitions of the metrics that the parts of a store export; as in `inlay.core.metrics`."""

from inlay.core.metrics import Metric, MetricKind


def _store(name: str, kind: MetricKind, help: str, *labels: str) -> Metric:
    return Metric(name=f"inlay_store_{name}", kind=kind, help=help, labels=labels)


STORE_ROLE = _store(
    "role", "gauge", "1 for what this process is (master, standby), else 0.", "role"
)
STORE_EPOCH = _store("epoch", "gauge", "The master's epoch.")
STORE_RECOVERING = _store("recovering", "gauge", "1 while the master learns what nodes hold.")
STORE_OBJECTS = _store("objects", "gauge", "Objects that the master knows.")
STORE_NODE_READY = _store("node_ready", "gauge", "1: the node is in use.", "node")
STORE_NODE_SILENT = _store("node_silent_seconds", "gauge", "Since it was heard last.", "node")
STORE_NODE_BYTES = _store("node_bytes", "gauge", "What a node contributes.", "node", "tier")
STORE_NODE_USED = _store("node_used_bytes", "gauge", "What of it is taken.", "node", "tier")
STORE_NODE_FRAGMENTATION = _store(
    "node_fragmentation", "gauge", "Free memory outside the largest free range / free.", "node"
)
STORE_DISK_OBJECTS = _store("disk_objects", "gauge", "Records that live in its log.", "node")
STORE_DISK_LIVING = _store("disk_living_bytes", "gauge", "Their bytes.", "node")
STORE_DISK_EXTENTS = _store("disk_extents", "gauge", "Pieces of its log.", "node", "state")
STORE_DISK_DAMAGED = _store(
    "disk_damaged", "counter", "Records and extents that were found damaged.", "node"
)
STORE_DISK_MOVED = _store("disk_moved", "counter", "Records read or written.", "node", "op")
STORE_DISK_MOVED_BYTES = _store("disk_moved_bytes", "counter", "Their bytes.", "node", "op")
STORE_DISK_MISSING = _store(
    "disk_missing", "counter", "Records that it did not have, or did not take.", "node", "op"
)
STORE_DISK_SECONDS = Metric(
    name="inlay_store_disk_seconds",
    kind="histogram",
    help="Of calls that read a record, or wrote and synced some.",
    labels=("node", "op"),
    buckets=tuple((1 << i) / 1e6 for i in range(25)),
)
STORE_DISK_METRICS = (
    STORE_DISK_OBJECTS,
    STORE_DISK_LIVING,
    STORE_DISK_EXTENTS,
    STORE_DISK_DAMAGED,
    STORE_DISK_MOVED,
    STORE_DISK_MOVED_BYTES,
    STORE_DISK_MISSING,
    STORE_DISK_SECONDS,
)
"""Metrics of the disk of a node, told by the node."""

STORE_GAUGES = (
    STORE_ROLE,
    STORE_EPOCH,
    STORE_RECOVERING,
    STORE_OBJECTS,
    STORE_NODE_READY,
    STORE_NODE_SILENT,
    STORE_NODE_BYTES,
    STORE_NODE_USED,
    STORE_NODE_FRAGMENTATION,
)
"""Gauges of the store's master."""

STORE_COUNTS = (
    _store("exists_keys", "counter", "Keys that clients asked for whether they are there."),
    _store("exists_found", "counter", "Those of them that were."),
    _store("located", "counter", "Keys whose location was asked for and told."),
    _store("missed", "counter", "Keys whose location was asked for and that were not there."),
    _store("committed", "counter", "Objects stored."),
    _store("kept", "counter", "Puts of a key that had an object, which was kept."),
    _store("stale", "counter", "Commits that had to be written again with a later generation."),
    _store("refused", "counter", "Commits that contradicted themselves, or what was granted."),
    _store("removed", "counter", "Objects removed by clients."),
    _store("evicted", "counter", "Objects evicted to make room."),
    _store("evicted_bytes", "counter", "Bytes of their records."),
    _store("demoted", "counter", "Records written to disks before their memory was taken."),
    _store("promoted", "counter", "Records read from disks into memory."),
    _store("dropped", "counter", "Records that disks gave up for others, or found damaged."),
    _store("copied", "counter", "Records copied to other nodes."),
    _store("lost_replicas", "counter", "Replicas that ended with their node."),
    _store("lost_objects", "counter", "Objects whose last replica did."),
    _store("granted", "counter", "Extents given to clients."),
    _store("full", "counter", "Extents refused because there was no room."),
    _store("expired_waits", "counter", "Answers that waited for cached locations to expire."),
    _store("advertised", "counter", "Records that nodes told the master of."),
    _store("commands", "counter", "What nodes were told to do."),
    _store("connections", "counter", "Connections to the master's port."),
    _store("refused_token", "counter", "Those that held another token."),
    _store("refused_version", "counter", "Those that spoke no common version."),
    _store("garbage", "counter", "Those that sent something else."),
    _store("crowded", "counter", "Those that were closed since there were too many."),
    _store("clients", "gauge", "Connections that are served."),
    _store("memory_bytes", "gauge", "Memory of the master's index."),
)
"""What `Survey` counts, by the same names."""

STORE_CLIENT_LOCATIONS = _store(
    "client_locations",
    "counter",
    "Locations that reads wanted, by source: known to the client, or asked of the master.",
    "source",
)
STORE_CLIENT_ABSENT = _store(
    "client_absent", "counter", "Keys that reads wanted, and that had no object."
)
STORE_CLIENT_READ = _store("client_read", "counter", "Values that were read, views among them.")
STORE_CLIENT_READ_BYTES = _store("client_read_bytes", "counter", "What was asked for of them.")
STORE_CLIENT_AGAIN = _store(
    "client_read_again",
    "counter",
    "Tries of reads after which another replica, or the master again, was asked.",
)
STORE_CLIENT_DAMAGED = _store(
    "client_damaged", "counter", "Reads of which no replica had the bytes that were put."
)
STORE_CLIENT_STORED = _store("client_stored", "counter", "Values that were put.")
STORE_CLIENT_STORED_BYTES = _store("client_stored_bytes", "counter", "Their bytes.")
STORE_CLIENT_KEPT = _store(
    "client_kept", "counter", "Puts of a key that had an object, which stayed."
)
STORE_CLIENT_METRICS = (
    STORE_CLIENT_LOCATIONS,
    STORE_CLIENT_ABSENT,
    STORE_CLIENT_READ,
    STORE_CLIENT_READ_BYTES,
    STORE_CLIENT_AGAIN,
    STORE_CLIENT_DAMAGED,
    STORE_CLIENT_STORED,
    STORE_CLIENT_STORED_BYTES,
    STORE_CLIENT_KEPT,
)
"""Metrics of a store's clients, told by the processes that they are in."""
