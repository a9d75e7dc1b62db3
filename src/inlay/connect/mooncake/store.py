"""`MooncakeDistributedStore`: all calls in one class, as callers know it."""

from inlay.connect.mooncake.absent import AbsentStoreCalls
from inlay.connect.mooncake.asking import Asking
from inlay.connect.mooncake.segments import Segments
from inlay.connect.mooncake.sessions import Sessions
from inlay.connect.mooncake.tensor_calls import TensorCalls


class MooncakeDistributedStore(TensorCalls, Sessions, Segments, Asking, AbsentStoreCalls):
    """A store of Inlay behind Mooncake's calls. They may be made by any thread.

    No call but those with wrong types raises: codes are those of `inlay.connect.mooncake.codes`,
    and the reason is in the log. Before `setup` and after `close` calls return -601, or what a
    miss returns. The GIL is free while bytes move.
    """
