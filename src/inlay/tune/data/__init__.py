"""Data of a fine-tuning run: files, conversations, token ids and their loss mask, rows."""
