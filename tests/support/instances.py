"""Instances as their launcher and their dispatchers see them: real processes and sockets."""

import json
import os
import subprocess
import sys
import time

import msgspec
import zmq

from inlay.core.instance_messages import FromInstance, KvEvents, KvSnapshot, Subscribe
from inlay.core.instance_setup import MODULE, InstanceLine
from inlay.core.instance_socket import connect_instance
from inlay.core.messages import EngineFailure, OutputBatch

_TIMEOUT_S = 90.0  # a process that starts imports for seconds, with a share of two cores


class RunningInstance:
    """`python -m inlay.engine.worker` with a launcher's pipes."""

    def __init__(self, config, name="i0", **instance):
        self.process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,
        )
        setup = {
            "config": config,
            "parent_pid": os.getpid(),
            "instance": {"name": name, **instance},
        }
        self.process.stdin.write(json.dumps(setup).encode() + b"\n")
        self.address = ""

    def line(self):
        """The next thing that it says to its launcher; None at its end."""
        line = self.process.stdout.readline()
        return msgspec.json.decode(line, type=InstanceLine) if line else None

    def wait_ready(self):
        """Read both lines; returns itself."""
        self.address = self.line().address
        assert self.line().address == self.address
        return self

    def stop(self):
        """End it as a launcher does; returns the exit status."""
        self.process.stdin.close()
        try:
            return self.process.wait(_TIMEOUT_S)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


class Peer:
    """A dispatcher's side of one connection; it keeps all that it heard.

    Attributes:
        heard: messages in order, without outputs.
        outputs: of each request, by its id.
    """

    def __init__(self, address, secret="", name="test"):
        self.name = name
        self._context = zmq.Context()
        self.socket = connect_instance(self._context, address, secret)
        self._decode = msgspec.msgpack.Decoder(FromInstance).decode
        self.heard = []
        self.outputs = {}
        self.batches = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close(linger=0)
        self._context.term()

    def send(self, message):
        self.socket.send(msgspec.msgpack.encode(message))

    def subscribe(self, **fields):
        self.send(Subscribe(self.name, **fields))
        return self

    def receive(self, timeout_s=_TIMEOUT_S):
        """The next message; None if none comes in time."""
        if not self.socket.poll(int(1000 * timeout_s)):
            return None
        message = self._decode(self.socket.recv())
        if isinstance(message, OutputBatch):
            self.batches += 1
            for output in message.outputs:
                self.outputs.setdefault(output.request_id, []).append(output)
        else:
            self.heard.append(message)
        return message

    def until(self, condition, timeout_s=_TIMEOUT_S):
        """Receive until `condition()` is true."""
        end = time.monotonic() + timeout_s
        while not condition():
            left_s = end - time.monotonic()
            assert left_s > 0, f"it did not happen; heard last: {self.heard[-3:]}"
            self.receive(left_s)

    def next(self, kind, timeout_s=_TIMEOUT_S):
        """The next message of a kind from now on."""
        seen = len(self.heard)
        self.until(lambda: any(isinstance(m, kind) for m in self.heard[seen:]), timeout_s)
        return next(m for m in self.heard[seen:] if isinstance(m, kind))

    def finished(self, request_id):
        outputs = self.outputs.get(str(request_id))
        return bool(outputs) and outputs[-1].finished

    def generate(self, message):
        """Send a request and wait for its end; its outputs."""
        self.send(message)
        self.until(lambda: self.finished(message.request_id))
        return self.outputs[message.request_id]

    def failure(self):
        return self.next(EngineFailure)

    def blocks(self):
        """What this peer knows of the instance's blocks, each change checked on the way."""
        blocks, sequence = None, None
        for message in self.heard:
            if isinstance(message, KvSnapshot):
                blocks, sequence = set(_digests(message.digests)), message.sequence
            elif isinstance(message, KvEvents):
                assert message.sequence == sequence + 1, "an event is missing"
                sequence = message.sequence
                for change in message.changes:
                    for digest in _digests(change.digests):
                        assert (digest in blocks) != change.stored
                        (blocks.add if change.stored else blocks.remove)(digest)
        return blocks


def tokens(outputs):
    """Token ids of a request's outputs, of all choices in order of arrival."""
    return [token for o in outputs for choice in o.choices for token in choice.token_ids]


def _digests(joined):
    return [joined[at : at + 16] for at in range(0, len(joined), 16)]
