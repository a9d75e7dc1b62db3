"""One request that was sent to instances and is not finished, as the cluster state keeps it."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class LiveRequest:
    """What was sent where, and what is expected of it. Times are of the state's clock.

    Attributes:
        prefill, decode: slots.
        level: its queue, see `slot_numbers.level_of`.
        num_tokens: of the prompt.
        new_tokens: of them, those to be computed.
        work_s: predicted time to compute them.
        outputs: expected number.
        pages: that it needs where it decodes, besides those that it shares.
        sent_s: when.
        reach_s: when it is expected to begin to decode.
        end_s: when it is expected to be finished.
        decoding: whether its first output has come.
    """

    request_id: str
    prefill: int
    decode: int
    level: int
    num_tokens: int
    new_tokens: int
    work_s: float
    outputs: float
    pages: int
    sent_s: float
    reach_s: float
    end_s: float
    decoding: bool = False
