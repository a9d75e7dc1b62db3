"""Cases of the cluster."""
