"""`mc_store_rest_server`: objects over HTTP, by a process that is part of the store.

`python -m inlay.connect.mooncake.rest --config FILE --port 8080 [-D name=value ...]`. Without a
file the environment says how (`MooncakeConfig.load_from_env`). It listens on loopback, and whoever
reaches it may read and change all objects.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from inlay.connect.mooncake.config import MooncakeConfig, config_of
from inlay.connect.mooncake.http_service import Answer, HttpService, Request, Routes
from inlay.connect.mooncake.program import run_program
from inlay.connect.mooncake.store import MooncakeDistributedStore
from inlay.core.errors import ConfigError, StoreUnavailable
from inlay.core.stop_signals import stop_signals

MAX_BODY_BYTES = 100 << 20


def routes_of(store: MooncakeDistributedStore) -> Routes:
    """What the service answers. Values of PUT are texts; GET answers bytes."""

    def put(request: Request) -> Answer:
        try:
            given = json.loads(request.body)
            key, value = given.get("key"), given.get("value")
        except (ValueError, AttributeError):
            key = value = None
        if not isinstance(key, str) or not key or not isinstance(value, str):
            return Answer.json(400, {"error": "Missing key or value"})
        return _done(store.put(key, value.encode()), "PUT operation failed")

    def get(request: Request) -> Answer:
        handle = store.get_buffer(request.tail)
        if handle is None:
            return Answer.json(404, {"error": "Key not found"})
        return Answer(200, bytes(handle), "application/octet-stream")

    def exist(request: Request) -> Answer:
        found = store.is_exist(request.tail)
        if found < 0:
            return Answer.json(500, {"error": "Exist check failed"})
        return Answer.json(200, {"exists": found > 0})

    def remove(request: Request) -> Answer:
        return _done(store.remove(request.tail), "Remove operation failed")

    def remove_all(request: Request) -> Answer:
        count = store.remove_all()
        if count < 0:
            return Answer.json(500, {"error": "RemoveAll operation failed"})
        return Answer.json(200, {"status": f"success removed {count} keys"})

    return {
        ("PUT", "/api/put"): put,
        ("GET", "/api/get/"): get,
        ("GET", "/api/exist/"): exist,
        ("DELETE", "/api/remove/"): remove,
        ("DELETE", "/api/remove_all"): remove_all,
    }


def _done(code: int, otherwise: str) -> Answer:
    if code:
        return Answer.json(500, {"error": otherwise, "code": code})
    return Answer.json(200, {"status": "success"})


def serve(argv: Sequence[str]) -> int:
    """Serve until a stop signal."""
    parser = argparse.ArgumentParser(prog="mc_store_rest_server", description=__doc__)
    parser.add_argument("--config", type=Path, help="JSON; else the environment")
    parser.add_argument("-D", "--define", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--max-wait-time", type=float, help="taken, without effect")
    given = parser.parse_args(argv)
    config = _defined(
        MooncakeConfig.from_file(given.config) if given.config else MooncakeConfig.load_from_env(),
        given.define,
    )
    store = MooncakeDistributedStore()
    if store.setup(
        config.local_hostname,
        config.metadata_server,
        config.global_segment_size,
        config.local_buffer_size,
        config.protocol,
        config.device_name or "",
        config.master_server_address,
        enable_ssd_offload=config.enable_ssd_offload,
        ssd_offload_path=config.ssd_offload_path,
        tenant_id=config.tenant_id,
    ):
        raise StoreUnavailable(
            f"the store at {config.master_server_address} was not joined: the log says why"
        )
    service = HttpService(given.host, given.port, routes_of(store), max_body_bytes=MAX_BODY_BYTES)
    with stop_signals() as wait:
        print(f"objects at http://{given.host}:{service.port}/api", flush=True)
        wait()
    service.close()
    return store.close()


def _defined(config: MooncakeConfig, assignments: Sequence[str]) -> MooncakeConfig:
    values = asdict(config)
    for text in assignments:
        name, found, value = text.partition("=")
        if not found or name not in values:
            raise ConfigError(f"-D {text}: write NAME=VALUE, NAME of {', '.join(values)}")
        values[name] = value
    return config_of(values)


def main() -> None:
    """The program."""
    run_program(serve, sys.argv[1:])


if __name__ == "__main__":
    main()
