"""`mooncake_client`: a process that holds memory of a store, for `setup_dummy` of others.

`python -m inlay.connect.mooncake.client --master_server_address=127.0.0.1:50051 --port=50052`
"""

import sys
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, generate_latest

from inlay.connect.mooncake.config import parse_size
from inlay.connect.mooncake.flags import parse_flags
from inlay.connect.mooncake.http_service import Answer, HttpService, Request
from inlay.connect.mooncake.program import run_program
from inlay.connect.mooncake.store import MooncakeDistributedStore
from inlay.core.errors import StoreUnavailable
from inlay.core.stop_signals import stop_signals
from inlay.store.metrics import ClientCollector

KNOWN = {
    "host": "127.0.0.1",
    "port": "50052",
    "master_server_address": "127.0.0.1:50051",
    "metadata_server": "P2PHANDSHAKE",
    "protocol": "tcp",
    "global_segment_size": "4 GB",
    "tenant_id": "default",
    "enable_http_server": "false",
    "http_port": "9300",
}
IDLE = ("device_names", "local_buffer_size", "threads", "enable_offload",
        "start_offload_rpc_server", "use_mmap_arena_allocator", "mmap_arena_pool_size")  # fmt: skip


def serve(argv: Sequence[str]) -> int:
    """Hold memory until a stop signal."""
    flags = parse_flags(argv, KNOWN, IDLE)
    values = flags.values
    host, master = values["host"], values["master_server_address"]
    store = MooncakeDistributedStore()
    code = store.setup(
        "localhost" if host in ("0.0.0.0", "::") else host,
        values["metadata_server"],
        parse_size(values["global_segment_size"]),
        0,
        values["protocol"],
        "",
        master,
        tenant_id=values["tenant_id"],
    )
    if code:
        raise StoreUnavailable(f"the store at {master} was not joined: the log says why")

    def where(request: Request) -> Answer:
        return Answer.text(200, master)

    def health(request: Request) -> Answer:
        state = store.health_check()
        return Answer.json(503 if state else 200, {"status": state})

    registry = CollectorRegistry()
    registry.register(ClientCollector(store.opened))

    def metrics(request: Request) -> Answer:
        return Answer(200, generate_latest(registry), "text/plain; version=0.0.4; charset=utf-8")

    routes = {("GET", "/master"): where, ("GET", "/health"): health}
    services = [HttpService(host, int(flags.number("port")), routes, max_body_bytes=0)]
    if flags.on("enable_http_server"):
        more = {("GET", "/health"): health, ("GET", "/metrics"): metrics}
        services.append(HttpService(host, int(flags.number("http_port")), more, max_body_bytes=0))
    with stop_signals() as wait:
        print(f"client {store.get_hostname()} at {host}:{services[0].port}", flush=True)
        wait()
    for service in services:
        service.close()
    return store.close()


def main() -> None:
    """The program."""
    run_program(serve, sys.argv[1:])


if __name__ == "__main__":
    main()
