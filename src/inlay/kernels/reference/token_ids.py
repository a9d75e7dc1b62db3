"""Token ids of a prompt in a JSON body."""

import re

from inlay.core.token_ids import pack_token_ids

_SPACE, _NUMBER = rb"[ \n\r\t]*", rb"(?:0|[1-9][0-9]*)"
_ENTRY = _SPACE + _NUMBER + _SPACE
_LIST = re.compile(rb"%b\[%b(?:,%b)*\]%b" % (_SPACE, _ENTRY, _ENTRY, _SPACE))


def parse_token_ids(json: bytes, limit: int) -> bytes | None:
    """A JSON list of numbers below the limit, packed; else None."""
    if _LIST.fullmatch(json) is None:
        return None
    token_ids = [int(number) for number in re.findall(rb"[0-9]+", json)]
    return pack_token_ids(token_ids) if max(token_ids) < min(limit, 1 << 32) else None
