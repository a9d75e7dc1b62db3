"""What the CPU kernels reach, beside the roofline and other systems."""
