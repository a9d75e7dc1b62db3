"""Limits that a container or service manager sets on this process: cgroup v2, then v1."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from inlay.core.system_files import key_values, read_int, read_text

# v1 writes "no limit" as the largest page-aligned number; anything near it is no limit.
_NO_LIMIT = 2**60


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The tightest limits on the way up from this process's group; None where there is none.

    Attributes:
        memory_left_bytes: what the limits still allow; the page cache of files gives way.
    """

    cpu_quota_cores: float | None = None
    memory_bytes: int | None = None
    memory_left_bytes: int | None = None


def read_limits(root: Path = Path("/")) -> Limits:
    """Read the limits of this process's control group and all groups above it."""
    groups = _own_groups(root)
    quotas: list[float | None] = []
    memory: list[tuple[int, int] | None] = []
    for directory in _upwards(root / "sys/fs/cgroup", groups.get("", "/")):
        quotas.append(_v2_quota(directory))
        memory.append(_memory(directory, "memory.max", "memory.current"))
    if "cpu" in groups:
        quotas += map(_v1_quota, _upwards(root / "sys/fs/cgroup/cpu", groups["cpu"]))
    if "memory" in groups:
        for directory in _upwards(root / "sys/fs/cgroup/memory", groups["memory"]):
            memory.append(_memory(directory, "memory.limit_in_bytes", "memory.usage_in_bytes"))
    known = [pair for pair in memory if pair is not None]
    return Limits(
        cpu_quota_cores=min((quota for quota in quotas if quota is not None), default=None),
        memory_bytes=min((limit for limit, _ in known), default=None),
        memory_left_bytes=min((left for _, left in known), default=None),
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


def _memory(directory: Path, limit_file: str, used_file: str) -> tuple[int, int] | None:
    """A group's limit and what it leaves; None without a limit."""
    limit = read_int(directory / limit_file)
    if limit is None or limit >= _NO_LIMIT:
        return None
    used = read_int(directory / used_file) or 0
    stat = key_values(read_text(directory / "memory.stat") or "", " ")
    files = sum(int(stat.get(key, "0")) for key in ("inactive_file", "active_file"))
    return limit, min(limit, max(0, limit - used + files))
