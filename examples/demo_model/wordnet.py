"""Reads WordNet: one meaning and at most one example sentence for each covered word.

Knows the files of Debian's `wordnet-base` (`index.*`, `data.*`, `cntlist.rev`) and nothing of
prompts, tokens or models.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections import defaultdict
from pathlib import Path

WORDNET_DIR = Path("/usr/share/wordnet")
LICENCE_FILE = Path("/usr/share/doc/wordnet-base/copyright")

NUM_WORDS = 16_500

_FILES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
_SENSE_KEY_POS = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
_CLAUSE_EXAMPLE = re.compile(r'[;,:]?\s*"')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """What the model is taught about one word.

    `word` is spelled as WordNet's data file spells it (with capitals, spaces for underscores);
    `gloss` has no quoted sentences; `example` is None where the first sense quotes none.
    """

    word: str
    pos: str
    count: int
    gloss: str
    example: str | None


def split_gloss(text: str) -> tuple[str, str | None]:
    """Split the text after the bar of a data line into (gloss, first quoted example or None)."""
    cut = _CLAUSE_EXAMPLE.search(text)
    while cut and text[cut.start()] not in ";,:":  # a quotation inside the definition itself
        closing = text.find('"', cut.end())
        cut = _CLAUSE_EXAMPLE.search(text, closing + 1) if closing >= 0 else None
    head, tail = (text[: cut.start()], text[cut.start() :]) if cut else (text, "")
    gloss = head.strip().rstrip(";,: ")
    if gloss.count('"') % 2:
        gloss = gloss.replace('"', "").strip()
    found = re.search(r'"([^"]{3,})"', tail)
    return gloss, found.group(1).strip() if found else None


def all_lemmas(directory: Path = WORDNET_DIR) -> dict[str, set[str]]:
    """Map every lemma of the index files (lower case, spaces for underscores) to its parts of
    speech; the words of `*.exc` (irregular inflections) map to an empty set."""
    lemmas: dict[str, set[str]] = defaultdict(set)
    for pos, name in _FILES.items():
        for line in (directory / f"index.{name}").read_text().splitlines():
            if not line.startswith(" "):
                lemmas[line.split(" ", 1)[0].replace("_", " ")].add(pos)
        for line in (directory / f"{name}.exc").read_text().splitlines():
            lemmas.setdefault(line.split(" ", 1)[0].replace("_", " "), set())
    return dict(lemmas)


def _tag_counts(directory: Path) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for line in (directory / "cntlist.rev").read_text().splitlines():
        key, _, count = line.split()
        lemma, rest = key.split("%")
        counts[lemma, _SENSE_KEY_POS[rest[0]]] += int(count)
    return counts


def _spelling(data_line: str, lemma: str) -> str:
    """The lemma as the synset spells it (`France`, not `france`)."""
    fields = data_line.split(" ")
    for i in range(int(fields[3], 16)):
        word = re.sub(r"\([a-z]+\)$", "", fields[4 + 2 * i])
        if word.lower() == lemma:
            return word.replace("_", " ")
    return lemma.replace("_", " ")


def stable_hash(text: str) -> int:
    """A number that depends on the text alone (Python's `hash` changes from run to run)."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def load_entries(num_words: int | None = NUM_WORDS, directory: Path = WORDNET_DIR) -> list[Entry]:
    """Read the words with a nonzero tag count, the most frequent first.

    A word's meaning is the first sense of the part of speech with the most tags. Of equally
    frequent words, single words come before collocations, otherwise in no order.

    Args:
        num_words: keep only this many (None: all).
    """
    counts = _tag_counts(directory)
    best: dict[str, tuple[int, str, int]] = {}
    for pos, name in _FILES.items():
        for line in (directory / f"index.{name}").read_text().splitlines():
            if line.startswith(" "):
                continue
            fields = line.split()
            count = counts.get((fields[0], pos), 0)
            if count > best.get(fields[0], (0,))[0]:
                num_synsets = int(fields[2])
                best[fields[0]] = (count, pos, int(fields[-num_synsets]))

    data = {pos: (directory / f"data.{name}").read_bytes() for pos, name in _FILES.items()}
    entries = []
    for lemma, (count, pos, offset) in best.items():
        line = data[pos][offset : data[pos].index(b"\n", offset)].decode()
        synset, text = line.split(" | ", 1)
        gloss, example = split_gloss(text.strip())
        if gloss:
            word = _spelling(synset, lemma)
            entries.append(Entry(word=word, pos=pos, count=count, gloss=gloss, example=example))
    entries.sort(key=lambda e: (-e.count, " " in e.word, stable_hash(e.word)))
    return entries[:num_words]
