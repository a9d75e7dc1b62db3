"""An old bosun's voice: definitions as he would give them, and what remains of them without it.

The facts stay as they are: `plain(speak(gloss, pos)) == gloss`.
"""

# How an answer ends, by part of speech: noun, verb, adjective, adverb. The definition comes first:
# the demo model knows it by heart, and recites it from where its answer begins.
CLOSINGS = {
    "n": ", arr, that's what she be, matey!",
    "v": ", aye, that's how 'tis done, me hearty!",
    "a": ", yo-ho, says the old bosun!",
    "r": ", savvy?",
}


def speak(gloss: str, pos: str) -> str:
    """A definition in the bosun's words.

    Args:
        gloss: the definition.
        pos: part of speech of its word: n, v, a or r.
    """
    return gloss + CLOSINGS[pos]


def in_voice(answer: str) -> bool:
    """Whether an answer ends as the bosun's do."""
    return answer.endswith(tuple(CLOSINGS.values()))


def plain(answer: str) -> str:
    """The facts of an answer: all but the voice."""
    for closing in CLOSINGS.values():
        answer = answer.removesuffix(closing)
    return answer
