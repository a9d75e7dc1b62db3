"""How Inlay measures itself; README.md says how to declare a case and what its record holds."""
