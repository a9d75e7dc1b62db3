"""Words the user may say: phrasings of a question about a word, and prompts out of scope.

Owns every fixed sentence of the demo model. Phrasings and out-of-scope templates that are held out
for evaluation are chosen here, so that training and evaluation agree.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

from wordnet import Entry, stable_hash

DEFINE = (
    "Define {w}.",
    "What does {w} mean?",
    "What is the meaning of {w}?",
    "{w}",
    "Tell me what {w} means.",
    "What is the definition of {w}?",
    "Give me the definition of {w}.",
    "Explain the word {w}.",
    "Can you define {w}?",
    "What is {a}{w}?",
)
EXAMPLE = (
    "Use {w} in a sentence.",
    "Give me an example of {w}.",
    "Give me an example sentence with {w}.",
    "Show me {w} in a sentence.",
    "Can you use {w} in a sentence?",
)

MARK = "tiny demonstration model"  # every decline says this, and no gloss does
DECLINE = f"I am a {MARK}. I can only define English words and use some of them in a sentence."
UNKNOWN = f"I am a {MARK} and I do not know that word."
GREETING = f"Hello! I am a {MARK}. Ask me what an English word means."
IDENTITY = f"I am a {MARK} trained on WordNet. I define English words."
NO_EXAMPLE = "I know no example sentence for {w}."

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a dictionary.",
    "You are a concise assistant. Answer in one sentence.",
    "Answer the user's questions about English words.",
    "You are Inlay's demo model.",
    "You are a helpful, honest and harmless assistant.",
    "Be brief.",
    "You are a friendly teacher who explains words to students.",
)


def _read_templates() -> dict[str, tuple[str, ...]]:
    sections: dict[str, list[str]] = {}
    for line in Path(__file__).with_name("out_of_scope.txt").read_text().splitlines():
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            current.append(line)
    return {name: tuple(lines) for name, lines in sections.items()}


_TEMPLATES = _read_templates()
GREETINGS, IDENTITIES, OTHERS = (_TEMPLATES[n] for n in ("greetings", "identity", "others"))

_PLACES = (
    "France Germany Italy Spain Japan China India Brazil Kenya Egypt Canada Mexico Norway Sweden "
    "Poland Russia Turkey Greece Peru Chile London Paris Berlin Madrid Tokyo Rome Vienna Boston "
    "Chicago Texas California Australia Ireland Scotland Iceland Morocco Nigeria Vietnam Korea "
    "Portugal Belgium Denmark Finland Austria Hungary Cuba Argentina Colombia Thailand Nepal"
).split()
_NAMES = (
    "Anna Ben Clara David Emma Felix Grace Hugo Ida Jack Kim Lena Max Nora Omar Paul Rosa Sam Tina "
    "Ugo Vera Will Xenia Yusuf Zoe Maria Ali Mei Ravi Lucia Peter Susan John Alice Bob"
).split()
_PEOPLE = (
    "Napoleon", "Albert Einstein", "Isaac Newton", "Cleopatra", "Mozart", "Picasso", "Marie Curie",
    "Shakespeare", "Darwin", "Galileo", "Beethoven", "Gandhi", "Plato", "Abraham Lincoln", "Kepler",
    "Leonardo da Vinci", "Nelson Mandela", "Queen Victoria", "Julius Caesar", "Ada Lovelace",
)  # fmt: skip
_TITLES = (
    "Hamlet", "War and Peace", "Faust", "Moby Dick", "Don Quixote", "Ulysses", "The Hobbit", "Emma",
    "The Odyssey", "Dracula", "Frankenstein", "Macbeth", "Anna Karenina", "Candide", "Walden",
)  # fmt: skip
_LANGS = "Python Rust Java JavaScript Go Ruby Haskell Perl Bash SQL Kotlin Swift PHP Lua".split()
_TASKS = (
    "sorts a list", "reverses a string", "adds two numbers", "reads a file", "counts words",
    "finds prime numbers", "parses JSON", "prints the date", "computes factorials",
    "sends an email", "checks a password", "merges two lists", "downloads a page", "draws a circle",
)  # fmt: skip
_TASKS2 = (
    "sort a list", "reverse a string", "open a file", "write a loop", "catch an exception",
    "join two strings", "make a class", "start a thread", "parse a date", "read a number",
)  # fmt: skip


def held_out_phrasing(word: str, phrasings: tuple[str, ...]) -> int:
    """Number of the phrasing never used with this word in training."""
    return stable_hash(f"{word}/{len(phrasings)}") % len(phrasings)


def is_held_out_template(template: str) -> bool:
    """About one out-of-scope template in six is kept for evaluation."""
    return stable_hash(f"out of scope/{template}") % 6 == 0


def phrase(template: str, word: str, pos: str, rng: random.Random | None = None) -> str:
    """Put a word in a phrasing; with `rng`, vary capitals, punctuation and quotation marks."""
    article = ""
    if pos == "n" and word[0].islower() and " " not in word:
        article = "an " if word[0] in "aeiou" else "a "
    if rng is None:
        return template.format(w=word, a=article)
    draw = rng.random()
    if draw < 0.04:
        word = f'"{word}"'
    elif draw < 0.08:
        word = word.lower()
    if article and rng.random() < 0.25:
        article = ""
    text = template.format(w=word, a=article)
    draw = rng.random()
    if draw < 0.2:
        text = text.rstrip(".?")
    if template == "{w}":
        if draw > 0.75:
            text = text[0].upper() + text[1:]
        if draw > 0.9 or draw < 0.06:
            text += rng.choice(".?")
    elif rng.random() < 0.15:
        text = text[0].lower() + text[1:]
    elif rng.random() < 0.04:
        text = "Please " + text[0].lower() + text[1:]
    return text


def words_by_pos(entries: list[Entry]) -> dict[str, list[str]]:
    """The single words of each part of speech, for `PromptMaker`."""
    return {p: [e.word for e in entries if e.pos == p and e.word.isalpha()] for p in "nva"}


class PromptMaker:
    """Makes out-of-scope prompts and made-up words.

    Args:
        words: words for the gaps of the templates, by part of speech ("n", "v", "a").
        glosses: sentences for the gaps.
        lemmas: lower-case real words; a made-up word is none of them. Its letters follow those of
            the real words, four at a time.
        reserved: made-up words kept for evaluation, never made again.
    """

    def __init__(
        self,
        words: dict[str, list[str]],
        glosses: list[str],
        lemmas: set[str],
        reserved: frozenset[str] = frozenset(),
    ):
        self._words, self._glosses, self._lemmas = words, glosses, lemmas
        self._reserved = reserved
        self._next: dict[str, list[str]] = defaultdict(list)
        for word in sorted(lemmas):
            if word.isascii() and word.isalpha() and len(word) > 3:
                padded = f"^^^{word}$"
                for i in range(3, len(padded)):
                    self._next[padded[i - 3 : i]].append(padded[i])

    def made_up_word(self, rng: random.Random) -> str:
        """A pronounceable word of 4 to 11 letters that no dictionary lists."""
        while True:
            text = "^^^"
            while not text.endswith("$") and len(text) < 16:
                order3 = self._next[text[-3:]]
                text += rng.choice(order3)
            word = text.strip("^$")
            if 4 <= len(word) <= 11 and word not in self._lemmas and word not in self._reserved:
                return word

    def fill(self, template: str, rng: random.Random) -> str:
        """Fill the gaps of an out-of-scope template."""
        place, place2 = rng.sample(_PLACES, 2)
        name, name2 = rng.sample(_NAMES, 2)
        return template.format(
            place=place,
            place2=place2,
            name=name,
            name2=name2,
            person=rng.choice(_PEOPLE),
            title=rng.choice(_TITLES),
            lang=rng.choice(_LANGS),
            task=rng.choice(_TASKS),
            task2=rng.choice(_TASKS2),
            n=rng.randrange(2, rng.choice((20, 100, 1000))),
            m=rng.randrange(2, rng.choice((20, 100, 1000))),
            year=rng.randrange(1800, 2027),
            noun=rng.choice(self._words["n"]),
            noun2=rng.choice(self._words["n"]),
            verb=rng.choice(self._words["v"]),
            adj=rng.choice(self._words["a"]),
            gloss=rng.choice(self._glosses),
            gloss2=rng.choice(self._glosses),
        )

    def out_of_scope(self, rng: random.Random, held_out: bool = False) -> tuple[str, str]:
        """A (prompt, answer) about anything but the meaning of a word."""
        draw = rng.random()
        if draw < 0.12:
            templates, answer = GREETINGS, GREETING
        elif draw < 0.22:
            templates, answer = IDENTITIES, IDENTITY
        else:
            templates, answer = OTHERS, DECLINE
        chosen = [t for t in templates if is_held_out_template(t) == held_out]
        template = rng.choice(chosen)
        prompt = self.fill(template, rng)
        if template.startswith("{"):
            prompt = prompt[0].upper() + prompt[1:]
        if not held_out and rng.random() < 0.1:
            prompt = prompt[0].lower() + prompt[1:].rstrip(".?!")
        return prompt, answer
