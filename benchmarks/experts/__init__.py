"""Experts on processors: whole models, and what was predicted of them."""
