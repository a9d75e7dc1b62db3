"""Transport `unix-socket` for Inlay's transfer engine, in C."""

from pathlib import Path


def library() -> Path:
    """Where the shared library is."""
    return Path(__file__).with_name("unix_socket.so")
