"""From the end of a prefill to the first decode elsewhere, seen by the one between the two."""

import time
from collections.abc import Sequence
from contextlib import ExitStack

import msgspec

from benchmarks.cluster.fleet import Fleet
from inlay.core.instance_messages import KvTarget, LoadReport, StepSample
from inlay.core.messages import GenerateRequest, RequestTimes, SamplingParams
from inlay.core.token_ids import pack_token_ids
from tests.support.cluster import SECRET
from tests.support.instances import Peer


class Pair:
    """A prefill and a decode instance, and what a dispatcher does between them."""

    def __init__(self, fleet: Fleet) -> None:
        self._stack = ExitStack()
        self._prefill, self._decode = (
            self._stack.enter_context(Peer(member.address, SECRET)) for member in fleet.members
        )
        for peer in (self._prefill, self._decode):
            peer.subscribe().next(LoadReport)
        self._count = 0

    def close(self) -> None:
        """Leave both."""
        self._stack.close()

    def ask(self, prompt: list[int]) -> dict[str, float]:
        """One prompt that neither has, to two tokens.

        The prefill ends when its steps have taken as long as the instance says, from the begin of
        the first: what lies between steps counts as delay. The decode starts with its first step,
        which may be before the prefill's last step is over: KV is complete before its logits are.

        Returns:
            `prefill_s`, and `delay_s` from its end to the start of the decode.
        """
        self._count += 1
        message = GenerateRequest(
            request_id=f"r{self._count}",
            prompt=pack_token_ids(prompt),
            params=SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True),
            arrival_s=time.monotonic(),
        )
        before = len(self._prefill.heard)
        self._decode.send(msgspec.structs.replace(message, phase="decode"))
        self._prefill.send(msgspec.structs.replace(message, phase="prefill"))
        target = self._decode.next(KvTarget)
        self._prefill.send(target)
        for peer in (self._prefill, self._decode):
            peer.until(lambda peer=peer: peer.finished(message.request_id))
        computed = len(prompt) - 1
        self._prefill.until(lambda: _tokens(self._samples(before)) >= computed)
        if _tokens(self._samples(before)) != computed:
            raise RuntimeError("the prefill instance computed for others, too")
        prefill_s = sum(sample.seconds for sample in self._samples(before))
        end_s = _times(self._prefill, message.request_id).scheduled_s + prefill_s
        decode = _times(self._decode, message.request_id)
        if decode.first_token_s - decode.scheduled_s > prefill_s / 2:
            raise RuntimeError("the KV did not come: the decode instance computed the prompt again")
        return {"prefill_s": prefill_s, "delay_s": decode.scheduled_s - end_s}

    def _samples(self, before: int) -> list[StepSample]:
        reports = [one for one in self._prefill.heard[before:] if isinstance(one, LoadReport)]
        return [sample for report in reports for sample in report.samples]


def _tokens(samples: Sequence[StepSample]) -> int:
    return sum(sample.prefill_tokens for sample in samples)


def _times(peer: Peer, request_id: str) -> RequestTimes:
    (times,) = [output.times for output in peer.outputs[request_id] if output.times is not None]
    return times
