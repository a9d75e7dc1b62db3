"""Token ids of a prompt in a JSON body."""

import re

from inlay.core.token_ids import pack_token_ids

_SPACE, _NUMBER = rb"[ \n\r\t]*", rb"(?:0|[1-9][0-9]*)"
_ENTRY = _SPACE + _NUMBER + _SPACE
_LIST = re.compile(rb"%b\[%b(?:,%b)*\]" % (_SPACE, _ENTRY, _ENTRY))


def parse_token_ids(json: bytes, limit: int, start: int = 0) -> tuple[bytes, int] | None:
    """A JSON list of numbers below the limit, packed, and where it ends; else None."""
    found = _LIST.match(json, start)
    if found is None:
        return None
    token_ids = [int(number) for number in re.findall(rb"[0-9]+", found[0])]
    if max(token_ids) >= min(limit, 1 << 32):
        return None
    return pack_token_ids(token_ids), found.end()
