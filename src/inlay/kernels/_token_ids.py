"""Token ids of a prompt in a JSON body."""

from inlay.kernels import _backend


def parse_token_ids(json: bytes, limit: int, start: int = 0) -> tuple[bytes, int] | None:
    """A list of numbers in JSON, as `core.token_ids` packs them, and where it ends.

    Args:
        limit: size of the vocabulary.
        start: where the list begins, or the space before it.

    Returns:
        None where it is anything else: empty, no list, or with an entry that is no whole number in
        0..limit-1. Read it with a JSON decoder then, which says what is wrong.

    Cost: 5 ns per token, a fifteenth of what decoding to ints and packing them takes.
    """
    found: tuple[bytes, int] | None = _backend.ops.parse_token_ids(json, limit, start)
    return found
