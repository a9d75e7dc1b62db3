"""`mooncake.mooncake_store_service`, objects over HTTP, served by Inlay."""

from inlay.connect.mooncake.rest import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
