"""What fine-tuning reaches, beside the machine's limits and other systems."""
