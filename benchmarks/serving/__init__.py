"""What one server does: streams, prefix reuse, start."""
