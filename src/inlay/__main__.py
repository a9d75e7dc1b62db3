"""`python -m inlay` is the `inlay` command."""

from inlay.serve.cli import main

main()
