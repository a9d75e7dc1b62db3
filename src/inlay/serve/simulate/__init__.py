"""What `inlay simulate` shows."""
