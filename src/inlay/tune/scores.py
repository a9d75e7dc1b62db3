"""BLEU and ROUGE of generated texts against references, each variant under a name of its own.

| name | what |
|---|---|
| bleu-char-1 .. 4 | BLEU-n on characters, a mean over samples: LLaMA-Factory's `bleu-4` |
| bleu-word-1 .. 4 | the same on words |
| sacrebleu | BLEU-4 of all samples together, as sacreBLEU has it; comparable between papers |
| rouge-n-llamafactory | share of unique n-grams, a mean of F: LLaMA-Factory's `rouge-n` |
| rouge-l-llamafactory | longest common subsequence of the same words |
| rouge-n-google, rouge-l-google | as Google's rouge-score has them, without stemming |

Scores are from 0 to 100. Characters flatter: of an English sentence, BLEU-4 on characters is often
twice that on words. BLEU is computed by nltk and sacrebleu; ROUGE here, as its libraries have had
no release for years, and is a few lines.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inlay.core.errors import ArgumentError, ConfigError

FloatArray = NDArray[np.float64]

# Words of other scripts are runs of letters and digits, with a decimal part and percent sign;
# Chinese, Japanese and Korean characters are words by themselves, and so are signs.
_WORDS = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]"
    r"|[^\W_\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]+(?:\.\d+)?%?"
    r"|\S"
)
_GOOGLE_WORDS = re.compile(r"[a-z0-9]+")
_SMALL = 1e-8  # in the denominator of LLaMA-Factory's F


@dataclass(frozen=True)
class Scores:
    """Scores of some texts.

    Attributes:
        each: by name, the score of each sample; those that are means over samples.
        sacrebleu: of all samples together.
        sacrebleu_signature: how it was computed, for others to compare.
        words: what divided texts into words for `rouge-*-llamafactory`: `jieba` as in
            LLaMA-Factory, where it is installed, or `inlay`.
    """

    each: Mapping[str, FloatArray]
    sacrebleu: float
    sacrebleu_signature: str
    words: str

    @property
    def means(self) -> dict[str, float]:
        """All scores by name, rounded to four digits."""
        means = {name: round(float(values.mean()), 4) for name, values in self.each.items()}
        return means | {"sacrebleu": round(self.sacrebleu, 4)}


def score(predictions: Sequence[str], references: Sequence[str]) -> Scores:
    """Score texts, each against its reference.

    Raises:
        ArgumentError: no texts, or not as many of both.
        ConfigError: nltk or sacrebleu is not installed; says how to.

    Cost: about a millisecond per pair of sentences.
    """
    if not predictions or len(predictions) != len(references):
        raise ArgumentError(
            f"{len(predictions)} predictions and {len(references)} references: must be as many, "
            "and at least one"
        )
    sentence_bleu = _sentence_bleu()
    cut, words = _chinese_words()
    each: dict[str, list[float]] = {}
    for prediction, reference in zip(predictions, references, strict=True):
        found = _named("bleu-char", sentence_bleu(list(prediction), list(reference)))
        found |= _named("bleu-word", sentence_bleu(split_words(prediction), split_words(reference)))
        found |= _rouge(cut(prediction), cut(reference), _unique_f, "llamafactory", _SMALL)
        found |= _rouge(_google(prediction), _google(reference), _counted_f, "google", 0.0)
        for name, value in found.items():
            each.setdefault(name, []).append(100.0 * value)
    corpus, signature = _corpus_bleu(predictions, references)
    return Scores(
        {name: np.array(values) for name, values in each.items()}, corpus, signature, words
    )


def check_scores() -> None:
    """Refuse where what computes scores is missing, before anything is generated.

    Raises:
        ConfigError: nltk or sacrebleu is not installed; says how to.
    """
    score(["a"], ["a"])


def split_words(text: str) -> list[str]:
    """The words of a text in any script; signs are words."""
    return _WORDS.findall(text)


def bootstrap_interval(
    values: FloatArray, *, seed: int = 0, level: float = 0.95, rounds: int = 10_000
) -> tuple[float, float]:
    """The range of a mean over samples, by drawing as many samples again and again.

    Args:
        values: of the samples, or of differences between two systems on the same samples.
        seed: of the draws.
        level: probability that the mean is in the range.
        rounds: how often samples are drawn.
    """
    draws = np.random.default_rng(seed).integers(len(values), size=(rounds, len(values)))
    means = values[draws].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


_Bleu = Callable[[list[str], list[str]], list[float]]


def _sentence_bleu() -> _Bleu:
    """BLEU-1 to 4 of a prediction and its reference, with nltk's third smoothing."""
    try:
        from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
    except ImportError:
        raise ConfigError("scores need nltk: pip install 'inlay[tune]'") from None
    weights = [(1 / n,) * n for n in range(1, 5)]
    smoothing = SmoothingFunction().method3

    def bleu(prediction: list[str], reference: list[str]) -> list[float]:
        if not prediction or not reference:
            return [0.0] * len(weights)
        found = sentence_bleu([reference], prediction, weights, smoothing_function=smoothing)
        return [float(value) for value in found]

    return bleu


def _corpus_bleu(predictions: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise ConfigError("scores need sacrebleu: pip install 'inlay[tune]'") from None
    metric = BLEU()
    found = metric.corpus_score(list(predictions), [list(references)])
    return float(found.score), str(metric.get_signature())


def _named(name: str, values: Iterable[float]) -> dict[str, float]:
    return {f"{name}-{n}": value for n, value in enumerate(values, 1)}


_Overlap = Callable[[list[str], list[str], int], tuple[int, int, int]]


def _rouge(
    prediction: list[str], reference: list[str], overlap: _Overlap, variant: str, small: float
) -> dict[str, float]:
    """ROUGE-1, 2 and L of words."""
    lengths = len(prediction), len(reference)
    found = {f"rouge-{n}-{variant}": overlap(prediction, reference, n) for n in (1, 2)}
    found[f"rouge-l-{variant}"] = (_lcs_len(prediction, reference), *lengths)
    return {name: _f(*counts, small) for name, counts in found.items()}


def _unique_f(prediction: list[str], reference: list[str], n: int) -> tuple[int, int, int]:
    """How many n-grams both have, and each, every one counted once."""
    ours, theirs = set(_ngrams(prediction, n)), set(_ngrams(reference, n))
    return len(ours & theirs), len(ours), len(theirs)


def _counted_f(prediction: list[str], reference: list[str], n: int) -> tuple[int, int, int]:
    """The same, n-grams counted as often as they are there."""
    ours, theirs = Counter(_ngrams(prediction, n)), Counter(_ngrams(reference, n))
    return (ours & theirs).total(), ours.total(), theirs.total()


def _ngrams(words: list[str], n: int) -> Iterable[tuple[str, ...]]:
    return zip(*(words[at:] for at in range(n)), strict=False)


def _f(both: int, ours: int, theirs: int, small: float) -> float:
    if not both:
        return 0.0
    precision, recall = both / ours, both / theirs
    return 2 * precision * recall / (precision + recall + small)


def _lcs_len(first: list[str], second: list[str]) -> int:
    """Length of the longest common subsequence, a bit for each word of `first`.

    Source: Hyyrö, Bit-parallel LCS-length computation revisited, 2004.
    """
    at: dict[str, int] = {}
    for number, word in enumerate(first):
        at[word] = at.get(word, 0) | 1 << number
    every = (1 << len(first)) - 1
    rest = every
    for word in second:
        matches = rest & at.get(word, 0)
        rest = (rest + matches | rest - matches) & every
    return len(first) - rest.bit_count()


def _google(text: str) -> list[str]:
    return _GOOGLE_WORDS.findall(text.lower())


def _chinese_words() -> tuple[Callable[[str], list[str]], str]:
    """What divides texts into words as LLaMA-Factory does, and its name."""
    try:
        import jieba
    except ImportError:
        return split_words, "inlay"
    return lambda text: " ".join(jieba.cut(text)).split(), "jieba"
