"""Limits that a container or service manager sets on this process: cgroup v2, then v1."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from inlay.serve.doctor.files import read_int, read_text

# v1 writes "no limit" as the largest page-aligned number; anything near it is no limit.
_NO_LIMIT = 2**60


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The tightest limits on the way up from this process's group; None where there is none."""

    cpu_quota_cores: float | None
    memory_bytes: int | None


def read_limits(root: Path = Path("/")) -> Limits:
    """Read the limits of this process's control group and all groups above it."""
    groups = _own_groups(root)
    quotas, memory = [], []
    for directory in _upwards(root / "sys/fs/cgroup", groups.get("", "/")):
        quotas.append(_v2_quota(directory))
        memory.append(read_int(directory / "memory.max"))
    for name, values, read in (
        ("cpu", quotas, _v1_quota),
        ("memory", memory, lambda d: read_int(d / "memory.limit_in_bytes")),
    ):
        if name in groups:
            for directory in _upwards(root / "sys/fs/cgroup" / name, groups[name]):
                values.append(read(directory))  # type: ignore[arg-type]
    limits = [value for value in memory if value is not None and value < _NO_LIMIT]
    return Limits(
        cpu_quota_cores=min((quota for quota in quotas if quota is not None), default=None),
        memory_bytes=min(limits, default=None),
    )


def _own_groups(root: Path) -> dict[str, str]:
    """Controller -> path of this process's group; "" is the unified hierarchy."""
    groups: dict[str, str] = {}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller] = path
    return groups


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """The group's directory and those above it; inside a container the path may not be mounted."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _v2_quota(directory: Path) -> float | None:
    """`cpu.max`: `quota period` in microseconds, or `max period`."""
    parts = (read_text(directory / "cpu.max") or "max").split()
    if parts[0] == "max" or len(parts) != 2:
        return None
    return int(parts[0]) / int(parts[1])


def _v1_quota(directory: Path) -> float | None:
    quota = read_int(directory / "cpu.cfs_quota_us")
    period = read_int(directory / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None
