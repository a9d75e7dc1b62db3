"""What computing and loading cost here, learned from what they took. Pure: no clock, no I/O."""

_DECAY = 0.8


class _Rate:
    """Amount per second, later observations counting more."""

    def __init__(self, amount: float, seconds: float) -> None:
        self._amount, self._seconds = amount, seconds

    def observe(self, amount: float, seconds: float) -> None:
        self._amount = _DECAY * self._amount + amount
        self._seconds = _DECAY * self._seconds + max(seconds, 1e-6)

    def seconds_for(self, amount: float) -> float:
        return amount * self._seconds / self._amount


class LoadCosts:
    """Predicts how long a prefill, a look-up and a load take.

    Each is proportional to its amount, with a rate learned from calls of the usual size, so that
    what a call costs besides its bytes is part of the rate. Until something was seen, loading
    is taken to be quicker than computing.

    Args:
        page_bytes: bytes of a block.
        page_tokens: tokens of a block.

    Attributes:
        step_s: how long the last step with a prefill took.
    """

    def __init__(self, page_bytes: int, page_tokens: int) -> None:
        self._page_bytes = page_bytes
        self._page_tokens = page_tokens
        self._prefill = _Rate(100, 0.1)
        self._load = _Rate(5e7, 0.1)
        self._find = _Rate(1, 0.002)
        self.step_s = 0.0

    def observe_prefill(self, num_tokens: int, seconds: float) -> None:
        """A step computed so many prompt tokens. Short ones say little and are left out."""
        if num_tokens >= self._page_tokens:
            self.step_s = seconds
            self._prefill.observe(num_tokens, seconds)

    def observe_load(self, num_blocks: int, seconds: float) -> None:
        """So many blocks came in one call."""
        self._load.observe(num_blocks * self._page_bytes, seconds)

    def observe_find(self, seconds: float) -> None:
        """The store was asked what it has of one request."""
        self._find.observe(1, seconds)

    def prefill_s(self, num_tokens: int) -> float:
        """Expected time to compute the KV of prompt tokens."""
        return self._prefill.seconds_for(num_tokens)

    def load_s(self, num_blocks: int) -> float:
        """Expected time to load blocks, one call after the other."""
        return self._load.seconds_for(num_blocks * self._page_bytes)

    @property
    def find_s(self) -> float:
        """Expected time of a look-up."""
        return self._find.seconds_for(1)
