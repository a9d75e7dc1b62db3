from inlay.engine import loading
from inlay.models import memory


def test_a_containers_limit_bounds_the_page_pool(tmp_path, monkeypatch):
    """Else the pool takes its share of the whole machine, and the kernel ends the process."""
    (tmp_path / "memory.max").write_text(f"{1 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{1 << 18}\n")
    (tmp_path / "memory.stat").write_text("inactive_file 0\nactive_file 0\n")
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    assert loading._free_bytes("cpu") == (1 << 20) - (1 << 18)
