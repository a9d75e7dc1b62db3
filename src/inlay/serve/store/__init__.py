"""The processes around the store: a master with its administration over HTTP, and nodes."""
