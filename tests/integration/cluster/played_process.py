"""A process that plays its part: `python -m tests.integration.cluster.played_process`.

Its setup says what it does: `print` a text, `child`: start a process of its own that outlives it if
it may, `deaf`: ignore the end of its standard input, `exit` with a status.
"""

import json
import os
import subprocess
import sys
import time


def main() -> None:
    setup = json.loads(sys.stdin.readline())
    print("log of", setup["name"], file=sys.stderr, flush=True)
    print(setup.get("print", ""), flush=True)
    child = subprocess.Popen(["sleep", "600"]) if setup.get("child") else None
    said = {
        "state": "ready",
        "address": json.dumps(
            {
                "child": child.pid if child else 0,
                "cpus": sorted(os.sched_getaffinity(0)),
                "parent": setup["parent_pid"] == os.getppid(),
            }
        ),
    }
    print(json.dumps(said), flush=True)
    if "exit" in setup:
        sys.exit(setup["exit"])
    sys.stdin.read()
    while setup.get("deaf"):
        time.sleep(1)
    sys.exit(0)


if __name__ == "__main__":
    main()
