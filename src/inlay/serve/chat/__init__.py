"""`inlay chat`: a conversation in the terminal.

`conversation` is the state, `slash` its /commands, `backends` the two places an answer can come
from, `terminal` reads and writes, `timing` makes the figures under each answer, `session` joins
them.
"""
