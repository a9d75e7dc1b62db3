"""What dispatchers and instances say to each other, besides requests and outputs.

A dispatcher subscribes to each instance and hears what it is, which blocks it has, and how loaded
it is. A request may be divided: one instance computes its prompt (`phase="prefill"`) and streams
the keys and values into pages that another one has reserved (`phase="decode"`). The decode instance
tells where they are to go (`KvTarget`), the dispatcher passes that on, and the bytes go from one
instance to the other through `inlay.transfer`.

As in `core.messages`, fields are only ever added at the end, with a default.
"""

from typing import Literal

import msgspec

from inlay import __version__
from inlay.core.block_hash import Namespace
from inlay.core.messages import EngineInfo, FromEngine, ServedWeights, ToEngine

PROTOCOL = 3
"""Of these messages; instances and dispatchers with different ones refuse each other."""

Role = Literal["prefill", "decode", "both"]
ROLES: tuple[Role, ...] = ("prefill", "decode", "both")


class Subscribe(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Tell me what you are, which blocks you have, and from now on what changes.

    The answers are `InstanceInfo`, `KvSnapshot`, and then `KvEvents` and `LoadReport` as they come.
    Sent again where a sequence number is missing.

    Attributes:
        dispatcher: name of the one who asks, for logs.
        protocol: its `PROTOCOL`.
        version: of its Inlay, for messages.
    """

    dispatcher: str
    protocol: int = PROTOCOL
    version: str = __version__


class SetRole(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Take another role; every subscriber gets the new `InstanceInfo`."""

    role: Role


class InstanceInfo(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """What an instance is.

    Attributes:
        name: unique in its deployment.
        run_id: drawn anew at each start, hex; a restarted instance is another run.
        role: which phases it is for. It can compute both, whatever its role.
        version: of Inlay.
        protocol: its `PROTOCOL`.
        engine: what it serves.
        namespace: of its blocks, without a tenant. Equal namespaces can exchange KV.
        key_check: 8 bytes of a hash of the namespace's key: differs where secrets differ.
        transfer: "host:port" of its transfer engine; empty where it can exchange no KV.
        host: of the machine that it runs on.
        max_running, max_waiting, max_batch_tokens, prefill_chunk: of its scheduler.
        weights: that compute new requests; said again when it has others.
    """

    name: str
    run_id: str
    role: Role
    version: str
    protocol: int = PROTOCOL
    engine: EngineInfo
    namespace: Namespace
    key_check: bytes
    transfer: str = ""
    host: str = ""
    max_running: int
    max_waiting: int
    max_batch_tokens: int
    prefill_chunk: int
    weights: ServedWeights = ServedWeights()


class StepSample(msgspec.Struct, frozen=True, array_like=True):
    """One step, for whoever learns how long steps take.

    Attributes:
        prefill_tokens: prompt tokens computed.
        prefill_pairs: sum over them of the tokens each attended to.
        decodes: tokens computed one by one.
        decode_context: sum over these of their contexts.
        seconds: what the step took.
    """

    prefill_tokens: int
    prefill_pairs: int
    decodes: int
    decode_context: int
    seconds: float


class LoadReport(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """How loaded an instance is: after steps, at most every 20 ms, and each second when idle.

    Attributes:
        run_id: of the instance's run.
        waiting, running: choices in the queue, and those that run.
        receiving: requests whose KV another instance computes and has not all sent.
        prefill_tokens: prompt tokens still to be computed, of waiting and running ones.
        context_tokens: tokens in the contexts of those that decode.
        pages_total, pages_free, pages_cached: as in `EngineStats`.
        samples: steps since the last report, the latest 64 at most.
        find_s, load_block_s: what it took of late to ask the tiers about a prompt, and to load a
            block from them; None where there is no store that others share.
    """

    run_id: str
    waiting: int
    running: int
    receiving: int
    prefill_tokens: int
    context_tokens: int
    pages_total: int
    pages_free: int
    pages_cached: int
    samples: tuple[StepSample, ...] = ()
    find_s: float | None = None
    load_block_s: float | None = None


class KvChange(msgspec.Struct, frozen=True, array_like=True):
    """Blocks that became reusable, or are gone, in the order in which it happened.

    Attributes:
        stored: False: removed.
        digests: 16 bytes each, joined.
    """

    stored: bool
    digests: bytes


class KvEvents(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """What happened to an instance's blocks since the message before.

    Attributes:
        run_id: of the instance's run.
        sequence: one more than that of the snapshot or of the events before.
        changes: runs of the same kind, in order.
    """

    run_id: str
    sequence: int
    changes: tuple[KvChange, ...]


class KvSnapshot(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """All blocks of an instance.

    Attributes:
        run_id: of the instance's run.
        sequence: of the last events that it contains.
        digests: 16 bytes each, joined, parents before their children.
    """

    run_id: str
    sequence: int
    digests: bytes


class RankTarget(msgspec.Struct, frozen=True, array_like=True):
    """One rank's part of a target.

    Attributes:
        address: of its transfer engine.
        grant: proof that its pages were reserved; nothing lands without it.
    """

    address: str
    grant: int


class KvTarget(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """Where the KV of a prompt is to go: from the decode instance by way of the dispatcher.

    Attributes:
        request_id: the same at both instances.
        address: of its transfer engine, the first rank's.
        segment: name of its pool there.
        grant: proof that these pages were reserved; nothing lands without it.
        first_block: blocks before this one it has already.
        pages: page ids from that block on, little-endian u32 each; as many as `num_tokens` need.
        num_tokens: leading tokens whose KV is wanted: all that are known but the last. 0: nothing
            is wanted, the decode instance has nearly all; the prefill is to be cancelled.
        ticket: what the decode instance calls the request; comes back in `KvSent`.
        others: the ranks behind the first, each with its heads of the same pages.
    """

    request_id: str
    address: str
    segment: str
    grant: int
    first_block: int
    pages: bytes
    num_tokens: int
    ticket: str = ""
    others: tuple[RankTarget, ...] = ()

    @property
    def ranks(self) -> tuple[RankTarget, ...]:
        """All ranks, in order."""
        return (RankTarget(self.address, self.grant), *self.others)


def nothing_wanted(request_id: str) -> KvTarget:
    """The target of a prompt that need not be computed elsewhere."""
    return KvTarget(
        request_id=request_id,
        address="",
        segment="",
        grant=0,
        first_block=0,
        pages=b"",
        num_tokens=0,
    )


class KvSent(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """All KV that a `KvTarget` asked for has landed: from instance to instance.

    Attributes:
        ticket: of the target.
        cached_tokens: leading tokens that the sender did not compute for this request.
    """

    ticket: str
    cached_tokens: int


class KvLost(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The KV of a prompt will not come: the decode instance computes the rest itself.

    To that instance where the other one cannot send it, from that instance where it waits no more.
    """

    request_id: str
    reason: str


ToInstance = ToEngine | Subscribe | SetRole | KvTarget | KvLost
FromInstance = FromEngine | InstanceInfo | LoadReport | KvEvents | KvSnapshot | KvTarget | KvLost
