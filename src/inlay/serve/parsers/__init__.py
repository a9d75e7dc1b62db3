"""Readers of what chat models write: thinking, answers and tool calls in their own notations."""

from inlay.serve.parsers.base import OutputParser, Piece, PlainParser, ReaderOptions, joined
from inlay.serve.parsers.dialect import Dialect, choose_dialect
from inlay.serve.parsers.notations import NOTATIONS

__all__ = [
    "NOTATIONS",
    "Dialect",
    "OutputParser",
    "Piece",
    "PlainParser",
    "ReaderOptions",
    "choose_dialect",
    "joined",
]
