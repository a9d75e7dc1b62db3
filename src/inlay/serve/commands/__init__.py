"""The commands of `inlay`, one module each. They import what is heavy only when they run."""
