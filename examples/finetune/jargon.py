"""Writes the data of the second run: what the Jargon File says, in plain words and as printed.

    python examples/finetune/jargon.py [--held-out 250] [--dictd DIR]

A question has a term and what an entry says of it (Debian's `dict-jargon`), without the File's
manner: part of speech, braces around other entries' names, and its short forms are taken away. The
answer is the same as printed, some sentences of up to 200 characters. Of terms that are held out
nothing is in training; `jargon_held` has the beginning of their entries.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from dataset import write_dataset  # noqa: E402
from dictd import read_dictionary  # noqa: E402

MAX_CHARACTERS = 200
_ASCII = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "—": "-", "–": "-", "…": "..."})
_POS = re.compile(r"\b(?:n|v|vi|vt|adj|adv|interj|prov|excl|abbrev)\.")
_LABEL = re.compile(rf"^(?:/.*?/,?\s*)?(?:{_POS.pattern},?\s*)+")
_NUMBER = re.compile(r"^\d+\.\s+")
_USAGE = re.compile(r"^\[[^\]]*\]\s*")
_BRACE_GAP = re.compile(r"(?<=\{)\s+|\s+(?=\})")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'({])")
_LONG_FORMS = {
    "Compare": "One may compare it with",
    "Esp.": "Especially",
    "Oppose": "The opposite is",
    "See also": "There is more under",
    "See": "It is explained under",
    "Syn.": "The same as",
    "e.g.": "for example",
    "esp.": "especially",
    "i.e.": "that is",
    "syn.": "the same as",
}
_SHORT_FORM = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, _LONG_FORMS))})(?!\w)")


def pieces(entry: str) -> Iterator[str]:
    """Some sentences at a time of an entry with a part of speech, as printed behind the term."""
    head, _, body = entry.partition("\n\n")
    of_term = _POS.findall(head.partition("\n")[2])
    for paragraph in body.split("\n\n"):
        text = _BRACE_GAP.sub("", " ".join(paragraph.translate(_ASCII).split()))
        text = _USAGE.sub("", _NUMBER.sub("", text))
        label = _LABEL.match(text)
        kinds = _POS.findall(label[0]) if label else of_term
        text = _USAGE.sub("", _NUMBER.sub("", _LABEL.sub("", text)))
        for some in _sentences(text):
            if kinds and len(some) >= 20 and some.isascii():
                yield f"{kinds[0]} {some}"


def _sentences(text: str) -> Iterator[str]:
    some = ""
    for sentence in _SENTENCE_END.split(text):
        if some and len(some) + len(sentence) >= MAX_CHARACTERS:
            yield some
            some = ""
        if len(sentence) < MAX_CHARACTERS:
            some = f"{some} {sentence}".strip()
    yield some


def plain(piece: str) -> str:
    """A piece without the File's manner."""
    text = re.sub(r"[{}]", "", piece.partition(" ")[2])
    return _SHORT_FORM.sub(lambda found: _LONG_FORMS[found[0]], text)


def question(term: str, piece: str) -> str:
    """What is asked; the answer is the term and the piece."""
    return f"Write for the Jargon File: {term}: {plain(piece)}"


def write_jargon(entries: dict[str, str], num_held: int, folder: Path) -> None:
    """Write `jargon` (trained on) and `jargon_held`."""
    found: dict[str, list[str]] = {}
    for entry in entries.values():
        term = entry.partition("\n")[0].strip()
        said = list(pieces(entry))
        if said and term.isascii() and len(term) < 40:
            found.setdefault(term, said)
    terms = random.Random("jargon").sample(sorted(found), len(found))
    held, taught = terms[:num_held], terms[num_held:]
    kept = {piece for term in held for piece in found[term]}
    pairs = [(term, piece) for term in taught for piece in found[term] if piece not in kept]
    for name, chosen in (("jargon", pairs), ("jargon_held", [(t, found[t][0]) for t in held])):
        write_dataset(
            folder, name, [(question(term, piece), f"{term} {piece}") for term, piece in chosen]
        )


def main() -> None:
    """Write from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--held-out", type=int, default=250, help="terms to score")
    parser.add_argument("--dictd", type=Path, default=Path("/usr/share/dictd"))
    parser.add_argument("--output", type=Path, default=HERE / "data")
    args = parser.parse_args()
    write_jargon(read_dictionary("jargon", args.dictd), args.held_out, args.output)


if __name__ == "__main__":
    main()
