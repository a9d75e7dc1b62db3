"""Engines of other systems behind Inlay's dispatcher: a proxy process for each of them."""
