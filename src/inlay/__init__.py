"""Inlay: large language models served on mixed hardware."""

__version__ = "0.1.0"

__all__ = ["__version__"]
