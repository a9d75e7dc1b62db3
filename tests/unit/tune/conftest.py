"""Tiny models are fastest on one thread."""

from tests.support.one_thread import one_thread

__all__ = ["one_thread"]
