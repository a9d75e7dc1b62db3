"""Attempts of requests at instances: sent there, followed, and taken back.

An attempt at one instance is one message. One that is divided is two, to the instance that computes
the prompt and to the one that decodes; what they have to tell each other before keys and values can
flow goes through here. The instance that decodes is the one that answers: if the other one fails,
it computes the prompt, and the client sees nothing of it.
"""

import itertools
import logging
from collections.abc import Callable

import msgspec

from inlay.cluster.chooser import Chooser
from inlay.cluster.decision import Copy, Decision, RequestView
from inlay.cluster.instance import Instance
from inlay.cluster.instances import Instances
from inlay.cluster.kv_paths import KvPaths, Moving
from inlay.cluster.requests import Attempt, OpenRequest, Setback
from inlay.core.clock import Clock
from inlay.core.errors import (
    EngineDiedError,
    EngineError,
    InlayError,
    OverloadedError,
    RequestError,
)
from inlay.core.instance_messages import KvLost, KvTarget
from inlay.core.messages import CancelRequest, GenerateRequest, RequestOutput

log = logging.getLogger(__name__)

_PAGE_ID_BYTES = 4
_BEFORE_ALL_S = 3600.0


class Attempts:
    """Those of one dispatcher; the handler of its instances.

    Args:
        chooser: is told what begins and ends.
        drained: called for an instance that is draining and has nothing more of ours.

    Attributes:
        paths: between which instances keys and values went.
        lost_prompts: computed where they are decoded, though another instance was to.
    """

    def __init__(
        self,
        instances: Instances,
        chooser: Chooser,
        clock: Clock,
        drained: Callable[[Instance], None],
    ) -> None:
        self.paths = KvPaths()
        self.lost_prompts = 0
        self._instances = instances
        self._chooser = chooser
        self._clock = clock
        self._drained = drained
        self._numbers = itertools.count(1)
        instances.handler = self

    def start(self, live: OpenRequest, view: RequestView, decision: Decision) -> Attempt:
        """Send a request where a decision says.

        Raises:
            RequestError: it has values that no message can hold.
        """
        wire_id = f"{next(self._numbers)}:{live.message.request_id}"
        now_s = self._clock.now()
        decode = self._instances.at(decision.decode)
        prefill = self._instances.at(decision.prefill) if decision.split else None
        attempt = Attempt(wire_id, decision, decode, prefill, view)
        request = live.remaining(wire_id, now_s)
        self._chooser.started(wire_id, view, decision, now_s)
        decode.attempts[wire_id] = attempt
        if prefill is None:
            self._send(decode, attempt, request)
        else:
            prefill.attempts[wire_id] = attempt
            self._send(decode, attempt, msgspec.structs.replace(request, phase="decode"))
            self._send(prefill, attempt, msgspec.structs.replace(request, phase="prefill"))
        log.debug(
            "request dispatched",
            extra={
                "request": live.message.request_id,
                "attempt": wire_id,
                "decode": decode.name,
                "prefill": decode.name if prefill is None else prefill.name,
            },
        )
        return attempt

    def start_copy(self, copy: Copy, message: GenerateRequest) -> Attempt:
        """Have one instance send a prompt, which it has nearly all of, to another one."""
        wire_id = f"{next(self._numbers)}:{message.request_id}"
        source, target = self._instances.at(copy.source), self._instances.at(copy.target)
        attempt = Attempt(wire_id, None, target, source)
        # So old that it goes before all that wait; it takes a block's time from them.
        message = msgspec.structs.replace(message, request_id=wire_id, age_s=_BEFORE_ALL_S)
        target.attempts[wire_id] = source.attempts[wire_id] = attempt
        self._send(target, attempt, msgspec.structs.replace(message, phase="decode"))
        self._send(source, attempt, msgspec.structs.replace(message, phase="prefill"))
        return attempt

    def copied(self, attempt: Attempt, digests: bytes) -> None:
        """Blocks have come to the instance that an attempt of `start_copy` copied them to."""
        if attempt.decode.slot is not None:
            self._chooser.copied(attempt.decode.slot, digests, self._clock.now())

    def make_room(self, decision: Decision) -> None:
        """Take best-effort work away from an instance; it goes through the choice again."""
        for slot in {decision.prefill, decision.decode}:
            instance = self._instances.at(slot)
            attempt = instance.attempts.get(decision.preempt or "")
            if attempt is not None and attempt.decode is instance and not attempt.over:
                attempt.over = True
                instance.send(CancelRequest(attempt.wire_id))
                error = OverloadedError("it made room for others and found none elsewhere")
                attempt.events.put_nowait(Setback(error, "preempted"))

    def end(self, attempt: Attempt) -> None:
        """Nobody waits for an attempt any more."""
        if not attempt.over:
            attempt.over = True
            attempt.decode.send(CancelRequest(attempt.wire_id))
        self._end_prefill(attempt, cancel=True)
        self._chooser.finished(attempt.wire_id, attempt.output_tokens)
        attempt.decode.release(attempt.wire_id)

    def _end_prefill(self, attempt: Attempt, *, cancel: bool = False, landed: bool = False) -> None:
        prefill, moving = attempt.prefill, attempt.moving
        if prefill is None:
            return
        attempt.prefill = None
        if moving is not None and prefill.slot is not None:
            # Of a copy nothing is computed: its time is that of the transfer.
            timed = landed and attempt.decision is None
            seconds = self._clock.now() - moving.asked_s if timed else None
            self._chooser.sent(prefill.slot, moving.size_bytes, seconds)
        if cancel:
            prefill.send(CancelRequest(attempt.wire_id))
        prefill.release(attempt.wire_id)

    # What instances say

    def output(self, instance: Instance, output: RequestOutput) -> None:
        """See `Handler`."""
        attempt = instance.attempts.get(output.request_id)
        if attempt is None:
            return
        if instance is attempt.decode:
            if not attempt.begun:
                attempt.begun = True
                now_s = self._clock.now()
                self._chooser.begun(attempt.wire_id, now_s)
                if attempt.moving is not None:
                    attempt.moving.arrived(now_s)
            attempt.over = attempt.over or output.finished
            attempt.complete = output.finished and output.error is None
            attempt.events.put_nowait(output)
        elif output.finished and output.error is None:
            self._end_prefill(attempt, landed=True)
        elif output.finished:
            self._failed(instance, attempt, EngineError(output.error or ""))

    def target(self, instance: Instance, target: KvTarget) -> None:
        """See `Handler`."""
        attempt = instance.attempts.get(target.request_id)
        if attempt is None:
            return
        if target.num_tokens == 0:  # the decode instance has it all
            self._end_prefill(attempt, cancel=True)
        elif attempt.prefill is not None:
            attempt.prefill.send(target)
            attempt.moving = self._asked(attempt.prefill, attempt.decode, target)
            if attempt.prefill.slot is not None:
                self._chooser.sending(attempt.prefill.slot, attempt.moving.size_bytes)
        # Else the prefill has failed, and the decode instance was told so.

    def _asked(self, prefill: Instance, decode: Instance, target: KvTarget) -> Moving:
        page_bytes = 0 if decode.info is None else decode.info.engine.page_bytes
        size_bytes = len(target.pages) // _PAGE_ID_BYTES * page_bytes
        return self.paths.asked(prefill.name, decode.name, size_bytes, self._clock.now())

    def kv_lost(self, instance: Instance, message: KvLost) -> None:
        """See `Handler`."""
        attempt = instance.attempts.get(message.request_id)
        if attempt is not None and attempt.prefill is not None:
            self._not_sent(attempt, cancel=True)

    def lost(self, instance: Instance, error: InlayError) -> None:
        """See `Handler`."""
        for attempt in list(instance.attempts.values()):
            self._failed(instance, attempt, error)
        instance.attempts.clear()

    def drained(self, instance: Instance) -> None:
        """See `Handler`."""
        self._drained(instance)

    def _failed(self, instance: Instance, attempt: Attempt, error: InlayError) -> None:
        """An instance will do nothing more for an attempt."""
        if instance is attempt.decode:
            if not attempt.over:
                attempt.over = True
                died = EngineDiedError(f"the request was lost with its instance: {error}")
                attempt.events.put_nowait(Setback(died, "lost"))
        else:
            self._not_sent(attempt)
            attempt.decode.send(KvLost(attempt.wire_id, f"{instance.name}: {error}"))

    def _not_sent(self, attempt: Attempt, *, cancel: bool = False) -> None:
        """A prompt is computed where it is decoded."""
        self.lost_prompts += 1
        if attempt.moving is not None:
            attempt.moving.path.lost += 1
        self._end_prefill(attempt, cancel=cancel)
        waits = not (attempt.begun or attempt.over)
        if waits and attempt.request is not None and attempt.decision is not None:
            self._chooser.undivided(
                attempt.wire_id, attempt.request, attempt.decision, self._clock.now()
            )

    def _send(self, instance: Instance, attempt: Attempt, request: GenerateRequest) -> None:
        try:
            sent = instance.send(request)
        except (OverflowError, TypeError, msgspec.MsgspecError) as cause:
            self.end(attempt)
            raise RequestError(f"the request cannot be sent: {cause}") from cause
        if not sent:
            self._failed(instance, attempt, EngineError(f"{instance.name} cannot be reached"))
