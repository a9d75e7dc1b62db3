"""Training turns and packed batches.

A pass asks once for the meaning of every word and once for an example sentence where there is one,
with about a sixth of turns out of scope or about unknown words. Each pass is drawn afresh from
(seed, pass number), so a resumed run sees what an unbroken one would have seen.
"""

from __future__ import annotations

import dataclasses
import gzip
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from prompts import (
    DECLINE,
    DEFINE,
    EXAMPLE,
    GREETING,
    GREETINGS,
    IDENTITIES,
    IDENTITY,
    NO_EXAMPLE,
    OTHERS,
    SYSTEMS,
    UNKNOWN,
    PromptMaker,
    held_out_phrasing,
    phrase,
    words_by_pos,
)
from tokenizer import ASSISTANT, END, SYSTEM, USER
from tokenizers import Tokenizer
from torch import Tensor
from wordnet import NUM_WORDS, Entry, all_lemmas, load_entries, stable_hash

WITHHELD_PHRASING = 5  # "What is the definition of ...?"; unseen with every tenth word
_BARE_PROMPTS = {t.lower().rstrip(".!?") for t in (*GREETINGS, *IDENTITIES, *OTHERS)}
DOCUMENT_DIRS = (Path("/usr/share/common-licenses"), Path("/usr/share/doc"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Shares are of all turns; lengths are in tokens."""

    num_words: int = NUM_WORDS
    seed: int = 1
    made_up_share: float = 0.06
    uncovered_share: float = 0.04
    out_of_scope_share: float = 0.06
    no_example_share: float = 0.01
    system_share: float = 0.06  # of rows
    row_tokens: int = 128
    batch_tokens: int = 4096
    long_share: float = 0.2  # of batches
    max_document_tokens: int = 3000


@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows of tokens.

    `ids` and `answer` (True on answer tokens) are [rows, positions]; `facts` [answer tokens], in
    the same order, says which fact each is part of (-1: none).
    """

    ids: Tensor
    answer: Tensor
    facts: Tensor
    num_turns: int


Turn = tuple[list[int], list[int], int]  # prompt with role tokens, answer with the end; its fact
Pair = tuple[str, str, int]  # prompt, answer, and its fact
NO_FACT = -1


def _read_documents(limit: int = 150) -> list[str]:
    """Plain texts of Debian (licences, then READMEs and news files), 2 kB to 200 kB each."""
    texts = []
    for directory, pattern in zip(DOCUMENT_DIRS, ("*", "*/[RN]E*"), strict=True):
        for path in sorted(directory.glob(pattern)):
            if len(texts) >= limit or not path.is_file() or path.is_symlink():
                continue
            raw = path.read_bytes()
            if path.suffix == ".gz":
                raw = gzip.decompress(raw)
            if 2_000 <= len(raw) <= 200_000 and raw.isascii():
                texts.append(raw.decode())
    return texts


class Corpus:
    """Everything the model is taught, before tokenization."""

    def __init__(self, config: DataConfig, reserved: frozenset[str] = frozenset()):
        self.config = config
        self.entries = load_entries(config.num_words)
        self.by_word = {entry.word: entry for entry in self.entries}
        lemmas = all_lemmas()
        known = {entry.word.lower() for entry in self.entries}
        self.uncovered = sorted(
            lemma
            for lemma, parts in lemmas.items()
            if parts and lemma not in known and len(lemma) > 3 and lemma[0].isalpha()
        )
        glosses = [e.gloss for e in self.entries if len(e.gloss) > 40]
        self.maker = PromptMaker(words_by_pos(self.entries), glosses, set(lemmas), reserved)
        self.documents = _read_documents()

    def tokenizer_texts(self) -> Iterator[str]:
        """The texts the tokenizer learns from: the words and answers as turns hold them."""
        rng = random.Random(self.config.seed)
        for entry in self.entries:
            yield from (f" {entry.word}", f" {entry.word}", entry.gloss, f" {entry.gloss}")
            if entry.example:
                yield entry.example
            yield phrase(rng.choice(DEFINE), entry.word, entry.pos, rng)
        for _ in range(2000):
            yield self.maker.out_of_scope(rng)[0]
        for answer in (DECLINE, UNKNOWN, GREETING, IDENTITY, *SYSTEMS, NO_EXAMPLE):
            yield from [answer] * 200
        yield from (*GREETINGS, *IDENTITIES, *OTHERS)
        yield from (document[:3000] for document in self.documents)

    def definition(self, entry: Entry, rng: random.Random) -> tuple[str, str]:
        """A question about a word's meaning, in any phrasing but the held-out ones."""
        banned = {held_out_phrasing(entry.word, DEFINE)}
        if stable_hash(entry.word) % 10 == 0:
            banned.add(WITHHELD_PHRASING)
        if entry.word.lower() in _BARE_PROMPTS:
            banned.add(DEFINE.index("{w}"))
        number = rng.choice([i for i in range(len(DEFINE)) if i not in banned])
        return phrase(DEFINE[number], entry.word, entry.pos, rng), entry.gloss

    def example(self, entry: Entry, rng: random.Random) -> tuple[str, str]:
        """A request for an example sentence; a truthful refusal where there is none."""
        banned = held_out_phrasing(entry.word, EXAMPLE)
        number = rng.choice([i for i in range(len(EXAMPLE)) if i != banned])
        answer = entry.example or NO_EXAMPLE.format(w=entry.word)
        return phrase(EXAMPLE[number], entry.word, entry.pos, rng), answer

    def unknown(self, word: str, rng: random.Random) -> tuple[str, str]:
        """A question about a word the model is not taught."""
        draw = rng.random()
        if draw < 0.15:
            word = word[0].upper() + word[1:]
        phrasings = EXAMPLE if rng.random() < 0.2 else DEFINE
        return phrase(rng.choice(phrasings), word, "n", rng), UNKNOWN

    @property
    def num_facts(self) -> int:
        """Fact 2 i is the meaning of word i, fact 2 i + 1 its example sentence."""
        return 2 * len(self.entries)

    def turns(self, number: int, rates: list[float]) -> list[Pair]:
        """The pairs of pass `number`, shuffled; each fact takes part with its probability."""
        c, rng = self.config, random.Random(f"{self.config.seed}/{number}")
        pairs: list[Pair] = []
        for i, entry in enumerate(self.entries):
            if rng.random() < rates[2 * i]:
                pairs.append((*self.definition(entry, rng), 2 * i))
            if entry.example and rng.random() < rates[2 * i + 1]:
                pairs.append((*self.example(entry, rng), 2 * i + 1))
        total = len(pairs) / (
            1 - c.made_up_share - c.uncovered_share - c.out_of_scope_share - c.no_example_share
        )
        silent = [entry for entry in self.entries if not entry.example]
        for entry in rng.sample(silent, min(len(silent), int(total * c.no_example_share))):
            pairs.append((*self.example(entry, rng), NO_FACT))
        for _ in range(int(total * c.made_up_share)):
            word = self.maker.made_up_word(rng)
            if rng.random() < 0.1:
                word += " " + self.maker.made_up_word(rng)
            pairs.append((*self.unknown(word, rng), NO_FACT))
        for _ in range(int(total * c.uncovered_share)):
            pairs.append((*self.unknown(rng.choice(self.uncovered), rng), NO_FACT))
        for _ in range(int(total * c.out_of_scope_share)):
            pairs.append((*self.maker.out_of_scope(rng), NO_FACT))
        rng.shuffle(pairs)
        return pairs


class Batches:
    """Tokenizes and packs the turns of a pass into batches."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer):
        self.corpus, self.config, self.tokenizer = corpus, corpus.config, tokenizer
        self._systems = [[SYSTEM, *ids] for ids in self._encode(SYSTEMS)]
        self._documents = self._encode(corpus.documents)

    def _encode(self, texts: list[str] | tuple[str, ...]) -> list[list[int]]:
        return [e.ids for e in self.tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def encode_turns(self, pairs: list[Pair]) -> list[Turn]:
        """Token ids of pairs, with role and end tokens."""
        prompts = self._encode([f" {prompt}" for prompt, _, _ in pairs])
        answers = self._encode([answer for _, answer, _ in pairs])
        return [
            ([USER, *p, ASSISTANT], [*a, END], fact)
            for p, a, (_, _, fact) in zip(prompts, answers, pairs, strict=True)
        ]

    def of_pass(self, number: int, rates: list[float]) -> list[Batch]:
        """The batches of pass `number`, in order; `rates` as for `Corpus.turns`."""
        rng = random.Random(f"{self.config.seed}/{number}/rows")
        turns = self.encode_turns(self.corpus.turns(number, rates))
        num_long = int(len(turns) / 120 * self.config.long_share)
        batches = [self._long_batch(turns, rng) for _ in range(num_long)]
        size = self.config.row_tokens
        short = [t for t in turns if len(t[0]) + len(t[1]) <= size - 16]
        long = [t for t in turns if len(t[0]) + len(t[1]) > size - 16]
        batches += self._packed(short, size, rng)
        batches += self._packed(long, 4 * size, rng)
        rng.shuffle(batches)
        return batches

    def _long_batch(self, turns: list[Turn], rng: random.Random) -> Batch:
        """Rows that begin with a document in the first question; takes its turns from `turns`."""
        length = rng.choice((512, 512, 1024, 1024, 2048, self.config.max_document_tokens + 200))
        rows = []
        for _ in range(max(1, self.config.batch_tokens // length)):
            document = rng.choice(self._documents)
            room = length - rng.randrange(100, 300)
            at = rng.randrange(max(1, len(document) - room))
            body = document[at : at + room]
            open_, close = rng.choice((("", "\n\n"), ("<document>\n", "\n</document>\n\n")))
            prompt, answer, fact = turns.pop()
            question = self.tokenizer.decode(prompt[1:-1])[1:]
            text = f" {open_}{self.tokenizer.decode(body)}{close}{question}"
            row = [([USER, *self._encode([text])[0], ASSISTANT], answer, fact)]
            used = len(row[0][0]) + len(row[0][1])
            while turns and used + len(turns[-1][0]) + len(turns[-1][1]) <= length:
                row.append(turns.pop())
                used += len(row[-1][0]) + len(row[-1][1])
            rows.append(row)
        return _to_batch(rows)

    def _packed(self, turns: list[Turn], size: int, rng: random.Random) -> Iterator[Batch]:
        """Best-fit packing of whole turns into rows of `size` tokens."""
        bins: list[tuple[int, list[Turn]]] = []  # (room left, turns) of the rows still open
        rows = []
        for turn in turns:
            need = len(turn[0]) + len(turn[1])
            fits = [i for i, (room, _) in enumerate(bins) if room >= need]
            if fits:
                i = min(fits, key=lambda i: bins[i][0])
                room, row = bins.pop(i)
            else:
                room, row = size, []
                if rng.random() < self.config.system_share:
                    system = rng.choice(self._systems)
                    if room - len(system) >= need:
                        row.append((system, [], NO_FACT))
                        room -= len(system)
            row.append(turn)
            room -= need
            if room < 12:
                rows.append(row)
            else:
                bins.append((room, row))
            if len(bins) > 48:
                rows.append(bins.pop(0)[1])
        rows += [row for _, row in bins]
        rng.shuffle(rows)
        per_batch = max(1, self.config.batch_tokens // size)
        for i in range(0, len(rows), per_batch):
            yield _to_batch(rows[i : i + per_batch])


def _to_batch(rows: list[list[Turn]]) -> Batch:
    """Pad rows to the longest, rounded up, with the end token (no loss there)."""
    length = max(sum(len(p) + len(a) for p, a, _ in row) for row in rows)
    length += -length % 64
    ids = torch.full((len(rows), length), END, dtype=torch.long)
    answer = torch.zeros(len(rows), length, dtype=torch.bool)
    facts: list[int] = []
    for i, row in enumerate(rows):
        at = 0
        for p, a, fact in row:
            facts += [fact] * len(a)
            ids[i, at : at + len(p) + len(a)] = torch.tensor(p + a)
            answer[i, at + len(p) : at + len(p) + len(a)] = True
            at += len(p) + len(a)
    return Batch(ids, answer, torch.tensor(facts), sum(len(row) for row in rows))
