"""Reads a deployment's file.

    name = "demo"
    [instances.prefill]
    role = "prefill"
    count = 2
    [instances.decode]
    role = "decode"

A table of the file is a dataclass of `inlay.cluster.deployment`, and a key a field of it. Times are
written with their unit, `ttft = "500ms"`, and fields hold seconds: `ttft_s`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from inlay.cluster.deployment import Deployment
from inlay.cluster.groups import DispatcherGroup, InstanceGroup, StoreGroup, StoreNode, Tenant
from inlay.cluster.slo import SloClass
from inlay.core.errors import ConfigError
from inlay.core.foreign import ForeignEngine
from inlay.core.tables import (
    Settings,
    build,
    check_keys,
    named_tables,
    read_table,
    read_toml,
    sub_table,
)


def read_deployment(file: Path) -> Deployment:
    """Read a deployment file.

    Raises:
        ConfigError: it cannot be read, or does not fit together; names the key and the fix.
    """
    tables = read_toml(file)
    try:
        return parse_deployment(tables)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def parse_deployment(tables: Settings) -> Deployment:
    """A deployment from the tables of its file.

    Raises:
        ConfigError: an unknown key, with the nearest one, or what does not fit together.
    """
    check_keys("", tables, Deployment, without={})
    found: dict[str, Any] = {
        "instances": named_tables(tables, "instances", InstanceGroup, keep=("engine",)),
        "foreign": named_tables(tables, "foreign", ForeignEngine),
        "slo": named_tables(tables, "slo", SloClass, knows_name=True),
        "tenants": named_tables(tables, "tenants", Tenant),
        "engine": sub_table(tables, "engine"),
        "admission": sub_table(tables, "admission"),
    }
    if "dispatcher" in tables:
        table = sub_table(tables, "dispatcher")
        found["dispatcher"] = read_table("dispatcher", table, DispatcherGroup, ("options", "serve"))
    if "store" in tables:
        table = sub_table(tables, "store")
        nodes = named_tables(table, "nodes", StoreNode, prefix="store.")
        rest = {key: value for key, value in table.items() if key != "nodes"}
        found["store"] = replace(read_table("store", rest, StoreGroup), nodes=nodes)
    plain = {key: value for key, value in tables.items() if key not in (*found, "store")}
    return build(Deployment, plain, found)
