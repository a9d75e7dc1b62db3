"""`mooncake.http_metadata_server`, served by Inlay."""

from inlay.connect.mooncake.metadata_server import KVBootstrapServer, KVPoll, main

__all__ = ["KVBootstrapServer", "KVPoll", "main"]

if __name__ == "__main__":
    main()
