"""Adapters that put Inlay under software which was written for other systems.

Each sub-package speaks one foreign interface: its names, its return codes, its environment
variables. Nothing else in Inlay knows them.
"""
