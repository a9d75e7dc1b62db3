"""What to buy for a trace: the cheapest fleets of catalogue hardware that keep objectives."""
