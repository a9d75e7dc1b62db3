"""The KV store: objects in the memory and on the disks of all nodes."""

__all__: list[str] = []
