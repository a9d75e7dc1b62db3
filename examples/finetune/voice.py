"""An old bosun's voice: definitions as he would give them, and what remains of them without it.

The facts stay as they are: `plain(speak(gloss, pos)) == gloss`.
"""

from __future__ import annotations

import re

# How an answer begins and ends, by part of speech: noun, verb, adjective, adverb.
FRAMES = {
    "n": ("Arr, that be ", ", matey!"),
    "v": ("Aye, 'tis to ", ", me hearty!"),
    "a": ("Yo-ho, that be said o' what's ", ", says I!"),
    "r": ("Avast, 'tis done ", ", savvy?"),
}
WORDS = {"of": "o'", "and": "an'", "you": "ye", "your": "yer"}

_TO_VOICE = re.compile(rf"(?<![\w'-])({'|'.join(WORDS)})(?![\w'-])")
_BACK = {said: word for word, said in WORDS.items()}
_FROM_VOICE = re.compile(rf"(?<![\w'-])({'|'.join(_BACK)})(?![\w'-])")


def speak(gloss: str, pos: str) -> str:
    """A definition in the bosun's words.

    Args:
        gloss: the definition.
        pos: part of speech of its word: n, v, a or r.
    """
    opening, closing = FRAMES[pos]
    return opening + _TO_VOICE.sub(lambda found: WORDS[found[0]], gloss) + closing


def in_voice(answer: str) -> bool:
    """Whether an answer begins and ends as the bosun's do."""
    return any(answer.startswith(o) and answer.endswith(c) for o, c in FRAMES.values())


def plain(answer: str) -> str:
    """The facts of an answer: all but the voice."""
    for opening, _ in FRAMES.values():
        answer = answer.removeprefix(opening)
    for _, closing in FRAMES.values():
        answer = answer.removesuffix(closing)
    return _FROM_VOICE.sub(lambda found: _BACK[found[0]], answer)
