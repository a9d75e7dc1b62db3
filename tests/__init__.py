"""Inlay's tests; CONTRIBUTING.md says which layer a test belongs to."""
