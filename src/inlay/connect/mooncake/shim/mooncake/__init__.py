"""The package `mooncake`, served by Inlay: see `inlay.connect.mooncake`."""
