"""Runs the stages of `./tools/check`: which there are, what waits for what, and what came of them.

Standard library only: it runs before the environment in .venv exists.
"""
