"""A process between two engines that damages bytes on their way.

Argument: the address it passes everything on to. It prints its own, then, for each line on standard
input, how often it did damage since the line before; the line is how often it may from now on.

Damage is one bit of `MARK`, wherever that is seen in a stream, in either direction: tests put it
into their payloads, so that frames and handshakes stay whole.
"""

import socket
import sys
import threading

MARK = bytes(range(0x80, 0xA0))


class Damage:
    """How often, over all connections."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._allowed = 0
        self._done = 0

    def allow(self, times: int) -> int:
        with self._lock:
            done, self._done, self._allowed = self._done, 0, times
            return done

    def take(self) -> bool:
        with self._lock:
            if self._allowed == 0:
                return False
            self._allowed -= 1
            self._done += 1
            return True


def pump(source: socket.socket, sink: socket.socket, damage: Damage) -> None:
    passed = b""  # the last bytes, where a mark may have begun
    try:
        while chunk := source.recv(1 << 18):
            stream = bytearray(passed + chunk)
            at = stream.find(MARK)
            while at >= 0:
                if damage.take():
                    stream[at + len(MARK) - 1] ^= 4
                at = stream.find(MARK, at + len(MARK))
            sink.sendall(memoryview(stream)[len(passed) :])
            passed = bytes(stream[-(len(MARK) - 1) :])
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        sink.close()


def main() -> None:
    host, _, port = sys.argv[1].rpartition(":")
    damage = Damage()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            near, _ = listener.accept()
            far = socket.create_connection((host, int(port)))
            for one, other in ((near, far), (far, near)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=pump, args=(one, other, damage), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
    for line in sys.stdin:
        print(damage.allow(int(line)), flush=True)


if __name__ == "__main__":
    main()
