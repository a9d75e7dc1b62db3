"""What an API key has to be, for every server that takes one."""

from inlay.core.errors import ConfigError


def check_api_key(api_key: str | None) -> None:
    """Nothing where requests can carry it, or there is none.

    Raises:
        ConfigError: it is empty, or no ASCII text.
    """
    if api_key is None:
        return
    if not api_key.isascii():
        raise ConfigError("api_key must be ASCII text: HTTP headers carry nothing else")
    if not api_key:
        raise ConfigError("api_key is empty: leave it out to serve without a key")
