"""Cases of the simulator."""
