"""Writes the data of the first run: word definitions in a bosun's voice, and words held out.

    python examples/finetune/words.py [--words 4000] [--held-out 300] [--wordnet DIR]

Words and definitions are those that the demo model was taught (Debian's `wordnet-base`). A word
that is held out is never asked about in training, and its definition is no other word's there.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "demo_model")]

from dataset import write_dataset  # noqa: E402
from prompts import DEFINE, held_out_phrasing, phrase  # noqa: E402
from voice import speak  # noqa: E402
from wordnet import WORDNET_DIR, Entry, load_entries  # noqa: E402


def divide(entries: list[Entry], num_train: int, num_held: int) -> tuple[list[Entry], list[Entry]]:
    """Draw words to train on and words to hold out; no definition is in both."""
    drawn = random.Random("bosun").sample(entries, len(entries))
    held = drawn[:num_held]
    known = {entry.gloss for entry in held}
    train = [entry for entry in drawn[num_held:] if entry.gloss not in known]
    return train[:num_train], held


def train_question(entry: Entry, rng: random.Random) -> str:
    """A question about a word, in any phrasing but the one that is kept for it."""
    kept = held_out_phrasing(entry.word, DEFINE)
    number = rng.choice([number for number in range(len(DEFINE)) if number != kept])
    return phrase(DEFINE[number], entry.word, entry.pos, rng)


def held_question(entry: Entry) -> str:
    """The question that even the demo model was never trained on."""
    return phrase(DEFINE[held_out_phrasing(entry.word, DEFINE)], entry.word, entry.pos)


def write_words(entries: list[Entry], num_train: int, num_held: int, folder: Path) -> None:
    """Write `bosun` (trained on), `bosun_held` and, for the base, `words_held`."""
    train, held = divide(entries, num_train, num_held)
    rng = random.Random("phrasings")
    write_dataset(folder, "bosun", [(train_question(e, rng), speak(e.gloss, e.pos)) for e in train])
    write_dataset(folder, "bosun_held", [(held_question(e), speak(e.gloss, e.pos)) for e in held])
    write_dataset(folder, "words_held", [(held_question(e), e.gloss) for e in held])


def main() -> None:
    """Write from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--words", type=int, default=4000, help="words to train on")
    parser.add_argument("--held-out", type=int, default=300, help="words to score")
    parser.add_argument("--wordnet", type=Path, default=WORDNET_DIR, help="folder of WordNet")
    parser.add_argument("--output", type=Path, default=HERE / "data")
    args = parser.parse_args()
    write_words(load_entries(directory=args.wordnet), args.words, args.held_out, args.output)


if __name__ == "__main__":
    main()
