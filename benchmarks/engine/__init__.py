"""Cases of the engine, in one process."""
