"""SGLang's own check of its Mooncake storage, as it ships: over our `mooncake`, or over `inlay`.

Arguments: `mooncake` or `inlay`, the master's address, and the site-packages of an environment with
SGLang. With `inlay` the class that the check makes is the one of our module, by SGLang's factory
for dynamic backends.
"""

import dataclasses
import importlib
import os
import runpy
import sys
from typing import Any

from tests.integration.connect.sglang_here import use
from tests.integration.connect.sglang_pages import EXTRA

CHECK = "sglang.srt.mem_cache.storage.mooncake_store.test_mooncake_store"

if __name__ == "__main__":
    backend, master, site = sys.argv[1:]
    os.environ.update(MOONCAKE_MASTER=master, MOONCAKE_PROTOCOL="tcp")
    os.environ["MOONCAKE_GLOBAL_SEGMENT_SIZE"] = str(16 << 20)
    use(site)
    storage = importlib.import_module("sglang.srt.mem_cache.storage.mooncake_store.mooncake_store")
    if backend == "inlay":
        factory = importlib.import_module("sglang.srt.mem_cache.storage.backend_factory")

        def make(config: Any) -> Any:
            """In the place of `MooncakeStore`."""
            config = dataclasses.replace(config, extra_config=EXTRA | {"master": master})
            return factory.StorageBackendFactory.create_backend("dynamic", config, None)

        storage.MooncakeStore = make
    runpy.run_module(CHECK, run_name="__main__")
