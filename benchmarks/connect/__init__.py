"""Cases of Inlay under other engines."""
