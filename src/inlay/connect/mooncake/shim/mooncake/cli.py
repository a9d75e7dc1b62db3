"""`mooncake.cli`, the master, served by Inlay."""

from inlay.connect.mooncake.master import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
