"""The process of an instance: `python -m inlay.serve.instance`, started by a launcher.

It is `inlay.engine.worker`, and has weights that do not lie on its machine from those who hold
them.
"""

import os
import sys

from inlay.engine.worker import main
from inlay.serve.weights.pulled_versions import PulledVersions

if __name__ == "__main__":
    status = main(PulledVersions)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # as the worker ends
