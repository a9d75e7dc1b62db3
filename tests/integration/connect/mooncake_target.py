"""An engine of another process, by Mooncake's calls: it registers memory and says where.

Prints [name, address of 1 MiB of sevens], and after each line of input the first bytes as a text.
"""

import json
import sys

import numpy as np
from mooncake.engine import TransferEngine

engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
memory = np.full(1 << 20, 7, np.uint8)
addresses = [memory.ctypes.data, memory.ctypes.data + (1 << 19)]
assert engine.batch_register_memory(addresses, [1 << 19, 1 << 19]) == 0
print(json.dumps([f"127.0.0.1:{engine.get_rpc_port()}", memory.ctypes.data]), flush=True)
for line in sys.stdin:
    if line.strip() == "again":  # other segments at the same addresses
        assert engine.batch_unregister_memory(addresses) == 0
        assert engine.batch_register_memory(addresses, [1 << 19, 1 << 19]) == 0
    print(json.dumps(memory[:8].tolist()), flush=True)
assert engine.batch_unregister_memory(addresses) == 0
