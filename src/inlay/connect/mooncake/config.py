"""`MooncakeConfig`, and every environment variable of Mooncake that is read."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inlay.core.errors import ConfigError
from inlay.core.text_files import read_json_object

DEFAULT_GLOBAL_SEGMENT_SIZE = 3355443200
DEFAULT_LOCAL_BUFFER_SIZE = 1 << 30
DEFAULT_HTTP_PORT = 9300
_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= dict.fromkeys((_letter, f"{_letter}b", f"{_letter}ib"), 1024**_power)
_TRUE = ("true", "1", "yes", "on", "enable")
_FALSE = ("false", "0", "no", "off", "disable", "")


def parse_size(value: int | float | str) -> int:
    """Bytes of a number, or of "16MB" and "4 GB", whose units are powers of 1024 here.

    Raises:
        ConfigError: anything else, such as "50%".
    """
    if isinstance(value, int | float):
        return int(value)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    if match is None or match[2].lower() not in _UNITS:
        raise ConfigError(f"{value!r} is not a size: write for example 16MB, 4GB or 1073741824")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def parse_bool(value: bool | int | str | None) -> bool:
    """A flag as people write it. Raises `ConfigError` for other words."""
    text = str("" if value is None else value).strip().lower()
    if text not in _TRUE + _FALSE:
        raise ConfigError(f"{value!r} is no truth value: write true or false")
    return text in _TRUE


@dataclass
class MooncakeConfig:
    """How a process takes part in a store.

    Attributes:
        local_hostname: how other processes reach this one.
        metadata_server: "P2PHANDSHAKE", or the URL of a directory of engines.
        global_segment_size: bytes that this process contributes.
        local_buffer_size: taken, and not needed.
        protocol: "tcp", "rdma" and so on, in lower case.
        device_name: taken: paths are chosen by topology.
        master_server_address: HOST:PORT of the master.
        enable_ssd_offload, ssd_offload_path: a disk behind the memory.
        tenant_id: whose keys they are; those of "default" are as they are.
        enable_client_http_server, client_http_port: of `mooncake_client`.
    """

    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    device_name: str | None
    master_server_address: str
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = DEFAULT_HTTP_PORT

    def __post_init__(self) -> None:
        for name in ("local_hostname", "metadata_server", "master_server_address", "protocol"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ConfigError(f"{name} must be a text that is not empty, got {value!r}")
        for name in ("global_segment_size", "local_buffer_size"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be at least 0 bytes, got {getattr(self, name)}")
        self.protocol = self.protocol.strip().lower()

    @staticmethod
    def from_file(file_path: str) -> "MooncakeConfig":
        """Read a JSON file. Raises `ConfigError` (a ValueError) for what is missing or wrong."""
        found = read_json_object(Path(file_path), remedy="correct it", error=ConfigError)
        for name in ("local_hostname", "metadata_server", "master_server_address"):
            if name not in found:
                raise ConfigError(f"{file_path} lacks {name!r}")
        return config_of(found)

    @staticmethod
    def load_from_env() -> "MooncakeConfig":
        """From the file that MOONCAKE_CONFIG_PATH names, else from MOONCAKE_MASTER and others.

        Raises:
            ConfigError: neither is set, or a value is wrong.
        """
        path = os.environ.get("MOONCAKE_CONFIG_PATH")
        if path is not None:
            return MooncakeConfig.from_file(path)
        if not os.environ.get("MOONCAKE_MASTER"):
            raise ConfigError(
                "set MOONCAKE_CONFIG_PATH to a JSON file, or MOONCAKE_MASTER to the master's "
                "HOST:PORT"
            )
        found = {
            field: os.environ[variable]
            for field, variable in _VARIABLES.items()
            if variable in os.environ
        }
        return config_of(
            {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", **found}
        )


_VARIABLES = {
    "local_hostname": "MOONCAKE_LOCAL_HOSTNAME",
    "metadata_server": "MOONCAKE_TE_META_DATA_SERVER",
    "global_segment_size": "MOONCAKE_GLOBAL_SEGMENT_SIZE",
    "local_buffer_size": "MOONCAKE_LOCAL_BUFFER_SIZE",
    "protocol": "MOONCAKE_PROTOCOL",
    "device_name": "MOONCAKE_DEVICE",
    "master_server_address": "MOONCAKE_MASTER",
    "enable_ssd_offload": "MOONCAKE_OFFLOAD_ENABLED",
    "ssd_offload_path": "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH",
    "tenant_id": "MOONCAKE_TENANT_ID",
    "enable_client_http_server": "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER",
    "client_http_port": "MOONCAKE_CLIENT_HTTP_PORT",
}


def config_of(found: dict[str, Any]) -> MooncakeConfig:
    """The configuration of values by name, which may be texts. Raises `ConfigError`."""
    return MooncakeConfig(
        local_hostname=found["local_hostname"],
        metadata_server=found["metadata_server"],
        global_segment_size=parse_size(
            found.get("global_segment_size", DEFAULT_GLOBAL_SEGMENT_SIZE)
        ),
        local_buffer_size=parse_size(found.get("local_buffer_size", DEFAULT_LOCAL_BUFFER_SIZE)),
        protocol=found.get("protocol", "tcp"),
        device_name=found.get("device_name", ""),
        master_server_address=found["master_server_address"],
        enable_ssd_offload=parse_bool(found.get("enable_ssd_offload", False)),
        ssd_offload_path=str(found.get("ssd_offload_path") or ""),
        tenant_id=str(found.get("tenant_id") or "default"),
        enable_client_http_server=parse_bool(found.get("enable_client_http_server", False)),
        client_http_port=int(found.get("client_http_port", DEFAULT_HTTP_PORT)),
    )


def client_ports() -> tuple[int, int]:
    """The range of ports of stores, the second one not in it."""
    low = int(os.environ.get("MC_STORE_CLIENT_MIN_PORT", "12300"))
    high = int(os.environ.get("MC_STORE_CLIENT_MAX_PORT", "14300"))
    if not 0 < low < high <= 65536:
        raise ConfigError(
            f"MC_STORE_CLIENT_MIN_PORT is {low} and MC_STORE_CLIENT_MAX_PORT {high}: ports are in "
            "1..65535, the first below the second"
        )
    return low, high


def transfer_timeout_s() -> float:
    """How long a transfer may take: MC_TRANSFER_TIMEOUT, 30 s, and no less than 5."""
    return max(5.0, float(os.environ.get("MC_TRANSFER_TIMEOUT", "30")))


def transports() -> tuple[str, ...] | None:
    """The ways that bytes may take: all of them (None), or TCP alone where MC_FORCE_TCP is set."""
    return ("tcp",) if os.environ.get("MC_FORCE_TCP") else None
