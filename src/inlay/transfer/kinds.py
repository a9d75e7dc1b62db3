"""What can be done with memory, as the compiled core numbers it."""

import enum


class Op(enum.IntEnum):
    """The direction of a transfer, seen from the process that submits it."""

    READ = 0
    WRITE = 1


class Access(enum.IntEnum):
    """What peers may do with a segment. WRITE includes reading."""

    NONE = 0
    READ = 1
    WRITE = 2
