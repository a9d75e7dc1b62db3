"""SGLang's HiCache over the store: with its own classes where they are, and their calls anyway."""

import json
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

HERE = Path(__file__).parent
PEERS = Path(os.environ.get("INLAY_PEERS", Path.home() / ".cache" / "inlay-peers"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
MOONCAKE = ("-m", "inlay.connect.mooncake")


@pytest.fixture(scope="module")
def site() -> str:
    """The site-packages of the environment `sglang` (`sglang_here.py`)."""
    found = next((PEERS / "sglang").glob("lib/python3*/site-packages"), None)
    if found is None or not (found / "compressed_tensors").is_dir():
        pytest.skip(f"{PEERS / 'sglang'} is not there, or lacks what SGLang's modules import")
    return str(found)


def run(*words: str) -> str:
    """A script of this folder in a process of its own; what it prints."""
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True, text=True, timeout=100, check=False, env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_pages_go_from_pool_to_pool(master: str) -> None:
    check_pages(HiCachePages, master)


@pytest.mark.peers
def test_the_factory_of_sglang_makes_it(master: str, site: str) -> None:
    run(str(HERE / "sglang_pages.py"), master, site)


@pytest.mark.peers
def test_a_page_of_sglangs_host_pool_is_one_transfer(master: str, site: str) -> None:
    said = run(str(HERE / "sglang_host_pool.py"), master, site)
    found = json.loads(said.splitlines()[-1])
    assert found == {"page_first": [3, 3, 3], "page_first_direct": [3, 3, 3]}


@pytest.mark.peers
@pytest.mark.parametrize("backend", ["mooncake", "inlay"])
def test_sglangs_own_check_passes(backend: str, master: str, site: str) -> None:
    said = run(*MOONCAKE, str(HERE / "sglang_checks.py"), backend, master, site)
    assert said.count("Testing batch operation") == 4


@pytest.mark.peers
def test_sglangs_engine_writes_from_prefill_to_decode(site: str) -> None:
    script = [*MOONCAKE, str(HERE / "sglang_transfer.py")]
    with subprocess.Popen(
        [sys.executable, *script, "serve", site],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT,
    ) as decode:  # fmt: skip
        assert decode.stdin is not None and decode.stdout is not None
        try:
            session, address, size = json.loads(decode.stdout.readline())
            said = run(*script, "send", site, session, str(address), str(size))
            probe, one, batch, no_probe, to_nobody = json.loads(said.splitlines()[-1])
            assert (probe, one, batch) == (0, 0, 0) and no_probe != 0 and to_nobody < 0
            print(file=decode.stdin, flush=True)
            assert decode.stdout.readline() == "0\n"  # all bytes are ones now
            decode.stdin.close()
            assert decode.wait(20) == 0
        finally:
            decode.kill()


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
