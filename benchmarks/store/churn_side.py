"""The process that fills a store and keeps putting new objects, for store/metadata.

    python -m benchmarks.store.churn_side MASTER TOKEN_HEX

`fill N`: puts objects until there are N. `churn`: goes on until it is killed, so that what is old
is evicted.
"""

import itertools
import sys
import threading

from inlay.store import Store

KEY_BYTES, VALUE_BYTES = 32, 64
RECORD_BYTES = 192  # header, key and payload, each in whole grains of 64 bytes
BATCH = 256


def main() -> None:
    """Do as told."""
    with Store.connect(sys.argv[1], token=bytes.fromhex(sys.argv[2])) as store:
        numbers = itertools.count()
        values = [bytes(VALUE_BYTES)] * BATCH

        def put() -> int:
            keys = [f"{number:032x}" for number in itertools.islice(numbers, BATCH)]
            store.put_many(keys, values)
            return int(keys[-1], 16)

        def churn() -> None:
            while True:
                put()

        print("ready", flush=True)
        for line in sys.stdin:
            word, *number = line.split()
            if word == "fill":
                while put() + 1 < int(number[0]):
                    pass
            else:
                threading.Thread(target=churn, daemon=True).start()
            print("done", flush=True)


if __name__ == "__main__":
    main()
