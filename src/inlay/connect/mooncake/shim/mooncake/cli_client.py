"""`mooncake.cli_client`, a process that holds memory, served by Inlay."""

from inlay.connect.mooncake.client import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
