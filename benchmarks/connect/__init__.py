"""Cases of what other engines and trainers use of Inlay."""
