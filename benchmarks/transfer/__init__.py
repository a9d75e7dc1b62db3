"""Cases of the transfer engine."""
