"""What a proxy's process reads from its standard input."""

import msgspec

from inlay.core.foreign import ForeignEngine
from inlay.core.instance_setup import InstanceSetup

MODULE = "inlay.connect.foreign.process"
"""The module to run; it answers as `core.instance_setup` says."""


class ProxySetup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of JSON; standard input then stays open, and its end is the proxy's.

    Attributes:
        parent_pid: the process whose end is also the proxy's.
        instance: what dispatchers see.
        engine: where it is.
        model: directory with config.json and tokenizer.json of what it serves.
        secret: of the deployment.
        page_tokens: of the deployment's blocks; None: what suits the engine.
    """

    parent_pid: int
    instance: InstanceSetup
    engine: ForeignEngine
    model: str
    secret: str
    page_tokens: int | None = None
