"""Published figures, simulated: one file each, whose `measure` puts ours beside theirs."""
