"""SGLang's HiCache over the store: with its own classes where they are, and their calls anyway."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inlay.connect.sglang import HiCachePages
from inlay.core.errors import ConfigError, StoreUnavailable
from tests.integration.connect.sglang_pages import Pool, check_pages, config_of
from tests.support.directories import free_port
from tests.support.tree import ROOT

SCRIPT = Path(__file__).with_name("sglang_pages.py")
PEERS = Path(os.environ.get("INLAY_PEERS", Path.home() / ".cache" / "inlay-peers"))


def test_pages_go_from_pool_to_pool(master: str) -> None:
    check_pages(HiCachePages, master)


@pytest.mark.peers
def test_the_factory_of_sglang_makes_it(master: str) -> None:
    site = next((PEERS / "sglang").glob("lib/python3*/site-packages"))
    done = subprocess.run(
        [sys.executable, str(SCRIPT), master, str(site)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_what_cannot_be(master: str) -> None:
    config = config_of(master)
    del config.extra_config["master"]
    with pytest.raises(ConfigError, match='lacks "master"'):
        HiCachePages(config)
    with pytest.raises(StoreUnavailable, match="was not joined"):
        HiCachePages(config_of(f"no.such.host.invalid:{free_port()}"))
    pool = Pool(0)
    pool.layout = "layer_first"
    pages = HiCachePages(config_of(master))
    with pytest.raises(ConfigError, match="--hicache-mem-layout page_first"):
        pages.register_mem_pool_host(pool)
    pages.close()
    assert pages.batch_exists(["a"]) == 0 and not pages.exists("a")  # a miss, and no error
