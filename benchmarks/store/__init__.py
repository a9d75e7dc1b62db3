"""Cases of the store."""
