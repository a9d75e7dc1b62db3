"""What one engine tells another."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a peer.

    Attributes:
        engine_id: the sender's.
        topic: what the sender named it; "" of notifications.
        body: at most 256 KiB.
        notification: it belongs to a batch whose bytes are complete (`submit(..., notify=)`).
    """

    engine_id: str
    topic: str
    body: bytes
    notification: bool
