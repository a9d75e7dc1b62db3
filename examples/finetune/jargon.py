"""Writes the data of the second run: terms of the Jargon File, and terms held out.

    python examples/finetune/jargon.py [--held-out 250] [--dictd DIR]

A definition is the first sentences of an entry (Debian's `dict-jargon`), as many as are there
within 200 characters, without pronunciation and marks. Terms that are held out are not in training
in any way: `jargon_held` asks for them. `jargon_again` asks for terms of the training data, in a
phrasing that is not used for them there.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "demo_model")]

from dataset import write_dataset  # noqa: E402
from dictd import read_dictionary  # noqa: E402
from prompts import DEFINE, held_out_phrasing, phrase  # noqa: E402

MAX_CHARACTERS = 200
PHRASINGS_OF_EACH = 3
_PLAIN = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "—": "-", "–": "-", "…": "..."})
_LABEL = re.compile(r"^(?:/.*?/,?\s*)?(?:(?:n|v|vi|vt|adj|adv|interj|prov|excl|abbrev)\.,?\s*)+")
_NUMBER = re.compile(r"^\d+\.\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")


def definition(entry: str) -> str | None:
    """The first sentences of an entry; None where there are none that are short enough."""
    head, _, body = entry.partition("\n\n")
    paragraphs = (" ".join(one.split()) for one in body.split("\n\n"))
    for paragraph in paragraphs:
        text = " ".join(re.sub(r"[{}]", "", paragraph).translate(_PLAIN).split())
        text = re.sub(r"^\[[^\]]*\]\s*", "", _NUMBER.sub("", text))
        text = _NUMBER.sub("", _LABEL.sub("", text))
        chosen = ""
        for sentence in _SENTENCE_END.split(text):
            if len(chosen) + len(sentence) >= MAX_CHARACTERS:
                break
            chosen = f"{chosen} {sentence}".strip()
        if len(chosen) >= 20 and chosen.isascii():
            return chosen
    return None


def terms(entries: dict[str, str]) -> list[tuple[str, str]]:
    """Terms with their definitions, in an order that is drawn."""
    found: dict[str, str] = {}
    for entry in entries.values():
        term = entry.split("\n")[0].strip()
        said = definition(entry)
        if said is not None and term.isascii() and len(term) < 40:
            found.setdefault(term, said)
    return random.Random("jargon").sample(sorted(found.items()), len(found))


def questions(term: str) -> tuple[list[str], str]:
    """Questions of training, and the one that is kept."""
    kept = held_out_phrasing(term, DEFINE)
    asked = [phrase(text, term, "v") for number, text in enumerate(DEFINE) if number != kept]
    return asked, phrase(DEFINE[kept], term, "v")


def write_jargon(entries: dict[str, str], num_held: int, folder: Path) -> None:
    """Write `jargon` (trained on), `jargon_held` and `jargon_again`."""
    drawn = terms(entries)
    held, taught = drawn[:num_held], drawn[num_held:]
    rng = random.Random("phrasings")
    train = [
        (question, said)
        for term, said in taught
        for question in rng.sample(questions(term)[0], PHRASINGS_OF_EACH)
    ]
    write_dataset(folder, "jargon", train)
    write_dataset(folder, "jargon_held", [(questions(term)[1], said) for term, said in held])
    again = [(questions(term)[1], said) for term, said in taught[:num_held]]
    write_dataset(folder, "jargon_again", again)


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
