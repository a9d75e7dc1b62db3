"""Puts an object and gets it back, by Mooncake's calls: nothing here knows Inlay.

python -m inlay.connect.mooncake.master --enable_http_metadata_server=true &
python -m inlay.connect.mooncake examples/mooncake/hello.py
"""

from mooncake.store import MooncakeDistributedStore

store = MooncakeDistributedStore()
store.setup(
    "localhost",
    "http://localhost:8080/metadata",
    512 * 1024 * 1024,
    128 * 1024 * 1024,
    "tcp",
    "",
    "localhost:50051",
)
store.put("hello_key", b"Hello, Mooncake Store!")
print(store.get("hello_key").decode())
store.close()
