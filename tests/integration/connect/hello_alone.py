"""Run the hello-world beside a master at Mooncake's usual ports: in a network namespace."""

import subprocess
import sys
from pathlib import Path

from tests.support.store import StoreProcess

folder, script = map(Path, sys.argv[1:])
subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=10)
master = StoreProcess(
    folder, "--enable_http_metadata_server=true", module=("inlay.connect.mooncake.master",)
)
try:
    master.wait_for("master at 127.0.0.1:50051")
    done = subprocess.run(
        [sys.executable, "-m", "inlay.connect.mooncake", str(script)], timeout=60, check=False
    )
finally:
    code = master.stop()
sys.exit(done.returncode or code)
