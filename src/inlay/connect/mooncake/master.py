"""`mooncake_master`: `inlay store master` by the flags of Mooncake's.

`python -m inlay.connect.mooncake.master --rpc_port=50051 ... [-- OPTION_OF_INLAY...]`
"""

import os
import re
import sys
from collections.abc import Sequence

from inlay.connect.mooncake.flags import Flags, parse_flags
from inlay.connect.mooncake.metadata_server import PATH, KVBootstrapServer
from inlay.connect.mooncake.program import run_child, run_program
from inlay.core.errors import ConfigError

LOOPBACK = "127.0.0.1"
KNOWN = {
    "rpc_address": LOOPBACK,
    "rpc_port": "0",
    "port": "50051",
    "metrics_host": LOOPBACK,
    "metrics_port": "9003",
    "default_kv_lease_ttl": "",
    "client_ttl": "",
    "eviction_ratio": "0.05",
    "eviction_high_watermark_ratio": "",
    "enable_ha": "false",
    "etcd_endpoints": "",
    "ha_backend_type": "etcd",
    "ha_backend_connstring": "",
    "cluster_id": "mooncake_cluster",
    "enable_http_metadata_server": "false",
    "http_metadata_server_host": LOOPBACK,
    "http_metadata_server_port": "8080",
}
# What Inlay does anyway, does otherwise, or leaves to its nodes.
IDLE = frozenset(
    """
    allocation_strategy allow_evict_soft_pinned_objects batch_oplog_retry_timeout_sec
    default_kv_soft_pin_ttl dynamic_replication_admission_qps_threshold
    dynamic_replication_heat_window_seconds dynamic_replication_max_memory_replicas
    dynamic_replication_mode enable_disk_eviction enable_metadata_cleanup_on_timeout
    enable_metric_reporting enable_offload enable_oplog enable_snapshot enable_snapshot_restore
    max_kv_soft_pin_ttl max_retry_attempts max_threads max_total_finished_tasks
    max_total_pending_tasks max_total_processing_tasks memory_allocator
    nof_eviction_high_watermark_ratio nof_eviction_ratio nof_heartbeat_failures_threshold
    nof_heartbeat_interval_sec nof_heartbeat_probe_timeout_ms offload_cap_ratio offload_force_evict
    offload_on_evict offloading_queue_limit oplog_batch_max_entries oplog_poll_interval_ms
    pending_task_timeout_sec pod_name pod_namespace processing_task_timeout_sec
    promotion_admission_threshold promotion_max_per_heartbeat promotion_on_hit promotion_queue_limit
    put_start_discard_timeout_sec put_start_release_timeout_sec quota_bytes rpc_conn_timeout_seconds
    rpc_enable_tcp_no_delay rpc_thread_num snapshot_backup_dir snapshot_catalog_backend_connstring
    snapshot_catalog_backend_type snapshot_catalog_store_connstring snapshot_catalog_store_type
    snapshot_child_timeout_seconds snapshot_interval_seconds snapshot_object_store_type
    snapshot_payload_backend_type snapshot_payload_store_type snapshot_retention_count
    """.split()
)
INSTEAD = {
    "config_path": "give the flags themselves",
    "enable_cxl": "nodes have memory of their hosts",
    "cxl_path": "nodes have memory of their hosts",
    "enable_kv_events": "inlay serve tells its dispatcher of blocks",
    "enable_multi_tenants": "name tenants in a file: ... -- --tenants FILE",
    "tenant_quota_connector_uri": "name tenants in a file: ... -- --tenants FILE",
    "root_fs_dir": "a store's disk is its own: enable_ssd_offload of its setup",
    "rpc_interface": "give the interface's address: --rpc_address",
}


def store_arguments(flags: Flags) -> list[str]:
    """The options of `inlay store master` that flags mean.

    Raises:
        ConfigError: a value that cannot be.
    """
    values = flags.values
    port = values["rpc_port"] if flags.number("rpc_port") else values["port"]
    arguments = ["--listen", f"{values['rpc_address']}:{port}"]
    arguments += ["--admin", f"{values['metrics_host']}:{values['metrics_port']}"]
    settings = {}
    if values["default_kv_lease_ttl"]:
        settings["location_ttl_s"] = duration_s(values["default_kv_lease_ttl"])
    if values["client_ttl"]:
        settings["node_timeout_s"] = flags.number("client_ttl")
    if values["eviction_high_watermark_ratio"]:
        high = flags.number("eviction_high_watermark_ratio")
        settings["high_watermark"] = high
        settings["low_watermark"] = max(0.01, high - flags.number("eviction_ratio"))
    for name, value in settings.items():
        arguments += ["--set", f"{name}={value:g}"]
    if flags.on("enable_ha"):
        arguments += ["--etcd", _cluster(flags)]
    return [*arguments, *flags.rest]


def duration_s(text: str) -> float:
    """Seconds of "500" (milliseconds), "500ms", "10s", "5m" or "1h". Raises `ConfigError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", text)
    if match is None:
        raise ConfigError(f"{text!r} is no duration: write 500 (milliseconds), 500ms, 10s, 5m, 1h")
    return float(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[match[2] or "ms"]


def _cluster(flags: Flags) -> str:
    values = flags.values
    endpoints = values["ha_backend_connstring"] or values["etcd_endpoints"]
    if values["ha_backend_type"] != "etcd" or not endpoints:
        raise ConfigError("--enable_ha needs etcd here: give --etcd_endpoints=HOST:2379")
    hosts = [
        one.strip().removeprefix("http://").removeprefix("etcd://")
        for one in endpoints.replace(";", ",").split(",")
    ]
    return f"etcd://{','.join(hosts)}/{values['cluster_id']}"


def serve(argv: Sequence[str]) -> int:
    """Run the master, and the metadata server beside it where that is asked for."""
    flags = parse_flags(argv, KNOWN, IDLE, INSTEAD)
    command = [sys.executable, "-m", "inlay", "store", "master", *store_arguments(flags)]
    if flags.idle:
        print(f"without effect here: {', '.join(f'--{name}' for name in flags.idle)}", flush=True)
    if not flags.on("enable_http_metadata_server"):
        os.execv(command[0], command)  # it has the number of this process, for who stops it
    metadata = KVBootstrapServer(
        int(flags.number("http_metadata_server_port")), flags.values["http_metadata_server_host"]
    )
    metadata.run()
    print(f"metadata at http://{metadata.host}:{metadata.port}{PATH}", flush=True)
    try:
        return run_child(command)
    finally:
        metadata.close()


def main() -> None:
    """The program."""
    run_program(serve, sys.argv[1:])


if __name__ == "__main__":
    main()
