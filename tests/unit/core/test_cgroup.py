"""Limits of control groups, and the files they are read from."""

from pathlib import Path

import pytest

from inlay.core.cgroup import Limits, read_limits
from inlay.core.system_files import format_list, parse_list
from tests.support.system_files import tree


@pytest.mark.parametrize(("text", "numbers"), [("0-2,5", [0, 1, 2, 5]), ("", []), ("7", [7])])
def test_kernel_lists(text: str, numbers: list[int]) -> None:
    assert parse_list(text) == numbers
    assert format_list(numbers) == text


def test_limits_of_cgroup_v2_come_from_the_tightest_group(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/cpu.max": "max 100000",
            "sys/fs/cgroup/a/cpu.max": "150000 100000",
            "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
            "sys/fs/cgroup/a/memory.max": "1073741824",
            "sys/fs/cgroup/a/memory.current": "536870912",
            "sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 4096\nactive_file 8192\n",
            "sys/fs/cgroup/a/b/memory.max": "2147483648",
            "sys/fs/cgroup/a/b/memory.current": "2147483648",
        },
    )
    assert read_limits(root) == Limits(cpu_quota_cores=1.5, memory_bytes=2**30, memory_left_bytes=0)
    (root / "sys/fs/cgroup/a/b/memory.current").unlink()
    assert read_limits(root).memory_left_bytes == 2**29 + 4096 + 8192


def test_limits_of_cgroup_v1(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/x\n",
            "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "50000",
            "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9223372036854771712",
        },
    )
    assert read_limits(root) == Limits(cpu_quota_cores=0.5)


def test_no_cgroups_at_all(tmp_path: Path) -> None:
    assert read_limits(tmp_path) == Limits()
