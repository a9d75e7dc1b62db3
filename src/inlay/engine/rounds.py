"""The order of several tenants' requests, where there is more to do than can be done at once. Pure.

A request's round is how many tokens would be computed for each tenant before it, if all had an
equal share. So the first request of a tenant goes behind one of each other tenant, and not behind
all that somebody has sent; requests of one tenant stay in the order in which they came.

Source: start-time fair queuing (Goyal, Vin, Cheng; SIGCOMM '96), in tokens as in VTC (Sheng et al.,
OSDI '24; arXiv 2401.00588).
"""

_MAX_TENANTS = 1024  # before those that have no work are forgotten


class Rounds:
    """Rounds of the requests of one engine. A request costs a microsecond.

    Attributes:
        now: the round of the latest request that began to run.
    """

    def __init__(self) -> None:
        self.now = 0
        self._next: dict[str, int] = {}  # of each tenant

    def take(self, tenant: str, num_tokens: int) -> int:
        """The round of a request that has so many tokens to compute."""
        if len(self._next) >= _MAX_TENANTS:
            self._next = {name: end for name, end in self._next.items() if end > self.now}
        begin = max(self.now, self._next.get(tenant, 0))
        self._next[tenant] = begin + num_tokens
        return begin

    def begun(self, at: int) -> None:
        """A request of this round runs; those that come now are not before it."""
        self.now = max(self.now, at)

    def charge(self, tenant: str, num_tokens: int) -> None:
        """More was computed for a tenant than it asked for at first, or, below 0, less."""
        self._next[tenant] = max(self.now, self._next.get(tenant, 0) + num_tokens)
