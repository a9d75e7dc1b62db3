"""What asynchronous calls return.

`submit_*` functions and `HandOver.begin` queue work for one thread that runs it beside the caller,
in the order of submission, on the pool that all kernels share. They return a `Pending`:

- `wait(timeout_s=None)` returns when the work is done. It raises what the work raised, and
  `WaitTimeoutError` when the time is over first (0 to 10^6 s; the work goes on). It can be called
  again, and from any thread; the GIL is released, Ctrl-C interrupts it. In asyncio:
  `await asyncio.to_thread(pending.wait)`.
- `done` tells without waiting.

Until the work is done, the memory of the arrays given to it stays, also when the `Pending` is
dropped or a tensor is given other data. It must not be written to, nor resized or freed by hand, as
torch's `resize_` does; the output must not be read. When the process exits, work that is pending is
dropped. A forked child cannot wait for its parent's work (ArgumentError).
"""

from typing import TYPE_CHECKING

from inlay.kernels import _backend

if TYPE_CHECKING:
    from inlay._native import kernels

    Pending = kernels.Pending
else:
    Pending = _backend.ops.Pending
