"""Weights on their way into servers: the watcher behind `inlay weights watch`, and updates."""
