"""A prefill and a decode instance, engines or processes, and what is between them."""

import time

import msgspec
import numpy as np

from inlay.core.instance_messages import KvLost, KvTarget, LoadReport
from inlay.core.messages import CancelRequest
from tests.support.instances import Peer


def prompts(sizes, seed=0, vocab=200):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, vocab, size).tolist() for size in sizes]


class Pair:
    """A prefill and a decode instance, and what a dispatcher does between them."""

    def __init__(self, prefill, decode):
        self.prefill, self.decode = prefill, decode
        self.outputs = {}
        self.sent = {}
        self.targets = {}
        self.given_up = []
        self.deaf = False  # pass no targets on

    def add(self, message):
        self.decode.add(msgspec.structs.replace(message, phase="decode"))
        if message.num_tokens > 1:
            self.prefill.add(msgspec.structs.replace(message, phase="prefill"))

    def step(self):
        for engine, outputs in ((self.prefill, self.sent), (self.decode, self.outputs)):
            if engine.has_work:
                for output in engine.step():
                    outputs.setdefault(output.request_id, []).append(output)
            for target in engine.take_kv_messages():
                if isinstance(target, KvLost):
                    self.given_up.append(target)
                    self.prefill.cancel(target.request_id)
                    continue
                self.targets[target.request_id] = target
                if target.num_tokens == 0:
                    self.prefill.cancel(target.request_id)
                elif not self.deaf:
                    self.prefill.kv_target(target)

    def drain(self, timeout_s=60.0):
        end_s = time.monotonic() + timeout_s
        while self.prefill.num_live or self.decode.num_live:
            assert time.monotonic() < end_s, "the pair makes no progress"
            self.step()
            if not self.prefill.has_work and not self.decode.has_work:
                time.sleep(0.0005)  # bytes are under way
        self.step()
        return self.outputs


def settle(engine, timeout_s=60.0):
    """Wait until no page is kept for what may still land."""
    end_s = time.monotonic() + timeout_s
    while engine.cache.counts().used:
        assert time.monotonic() < end_s, "pages are kept"
        engine.step()
        time.sleep(0.001)


def token_ids(outputs):
    choices = {}
    for output in outputs:
        assert output.error is None, output.error
        for delta in output.choices:
            choices.setdefault(delta.index, []).extend(delta.token_ids)
    return choices


class Between:
    """Sends each request to both instances, and targets from one to the other."""

    def __init__(self, pair):
        # An earlier peer at one of them: a request has different names in the two engines.
        self.early = Peer(pair[1].address)
        self.early.subscribe().next(LoadReport)
        self.prefill, self.decode = (Peer(instance.address) for instance in pair)
        self._passed = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for peer in (self.early, self.prefill, self.decode):
            peer.close()

    def send(self, message):
        self.decode.send(msgspec.structs.replace(message, phase="decode"))
        self.prefill.send(msgspec.structs.replace(message, phase="prefill"))

    def until(self, condition):
        while not condition():
            assert self.decode.receive() is not None, "the decode instance says nothing"
            self.pass_targets()

    def pass_targets(self):
        for message in self.decode.heard[self._passed :]:
            if isinstance(message, KvTarget):
                if message.num_tokens:
                    self.prefill.send(message)
                else:
                    self.prefill.send(CancelRequest(message.request_id))
        self._passed = len(self.decode.heard)
