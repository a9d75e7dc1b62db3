"""Work that was submitted: here it is done by then."""


class Pending:
    """What a submit function returns; the references compute before they return it."""

    done = True

    def wait(self, timeout_s: float | None = None) -> None:
        """Return at once."""
