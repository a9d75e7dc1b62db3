from inlay.core.cgroup import Limits
from inlay.models import memory


def test_a_containers_limit_bounds_the_page_pool(monkeypatch):
    """Else the pool takes its share of the whole machine, and the kernel ends the process."""
    limits = Limits(memory_bytes=1 << 20, memory_left_bytes=3 << 18)
    monkeypatch.setattr(memory, "read_limits", lambda: limits)
    assert memory.device_free_bytes("cpu") == 3 << 18
    assert memory.total_memory_bytes() == 1 << 20
