import random
import sys
import warnings

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from inlay.core.errors import ArgumentError
from inlay.tune.scores import bootstrap_interval, score, split_words

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of their syntax and imports
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
    from rouge_chinese import Rouge
    from rouge_score.rouge_scorer import RougeScorer

WORDS = "the cat sat on a mat and saw its dog , which ran . 猫 坐 Über 3.5 42%".split()


@pytest.fixture(autouse=True)
def without_jieba(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words are Inlay's, whatever is installed."""
    monkeypatch.setitem(sys.modules, "jieba", None)


def texts(seed: int, count: int = 60) -> tuple[list[str], list[str]]:
    """Sentences, and changed ones: words left out, doubled, moved."""
    draw = random.Random(seed)
    references = [" ".join(draw.choices(WORDS, k=draw.randint(1, 30))) for _ in range(count)]
    predictions = []
    for reference in references:
        words = [word for word in reference.split() if draw.random() > 0.2]
        words += draw.choices(WORDS, k=draw.randint(1, 5))
        if draw.random() < 0.3:
            draw.shuffle(words)
        predictions.append(" ".join(words))
    return predictions, references


def test_scores_of_a_known_pair() -> None:
    found = score(["the cat sat on the mat"], ["the cat is on the mat"]).means
    assert [found[f"bleu-char-{n}"] for n in (1, 2, 3, 4)] == pytest.approx(
        [90.9, 85.8, 82.0, 78.4], abs=0.05
    )
    assert [found[f"bleu-word-{n}"] for n in (1, 2, 3, 4)] == pytest.approx(
        [83.3, 70.7, 50.0, 38.0], abs=0.05
    )
    assert [found[f"rouge-{n}-llamafactory"] for n in "12l"] == pytest.approx(
        [80.0, 60.0, 83.3], abs=0.05
    )


def test_bleu_on_characters_and_words_is_nltks() -> None:
    predictions, references = texts(0)
    found = score(predictions, references).each
    smooth = SmoothingFunction().method3
    for n in (1, 2, 3, 4):
        weights = (1 / n,) * n
        for name, split in (("bleu-char", list), ("bleu-word", str.split)):
            expected = [
                100 * sentence_bleu([split(b)], split(a), weights, smoothing_function=smooth)
                for a, b in zip(predictions, references, strict=True)
            ]
            assert found[f"{name}-{n}"] == pytest.approx(expected)


def test_corpus_bleu_is_sacrebleus() -> None:
    predictions, references = texts(1)
    found = score(predictions, references)
    assert found.means["sacrebleu"] == pytest.approx(
        BLEU().corpus_score(predictions, [references]).score, abs=1e-4
    )
    assert "tok:13a" in found.sacrebleu_signature
    assert found.words == "inlay"


def test_llamafactorys_rouge_is_rouge_chineses() -> None:
    predictions, references = texts(2)
    found = score(predictions, references)
    each = [Rouge().get_scores(a, b)[0] for a, b in zip(predictions, references, strict=True)]
    for n in "12l":
        expected = [100 * one[f"rouge-{n}"]["f"] for one in each]
        assert found.each[f"rouge-{n}-llamafactory"] == pytest.approx(expected, abs=1e-5)


def test_googles_rouge_is_rouge_scores() -> None:
    predictions, references = texts(3)
    found = score(predictions, references)
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=False)
    each = [scorer.score(b, a) for a, b in zip(predictions, references, strict=True)]
    for n in "12L":
        expected = [100 * one[f"rouge{n}"].fmeasure for one in each]
        assert found.each[f"rouge-{n.lower()}-google"] == pytest.approx(expected)


def test_empty_texts_score_nothing() -> None:
    found = score(["", "a", "   "], ["b", "", "x"]).means
    assert set(found.values()) == {0.0}
    with pytest.raises(ArgumentError, match="2 predictions and 1 references"):
        score(["a", "b"], ["a"])
    with pytest.raises(ArgumentError, match="at least one"):
        score([], [])


def test_words_of_several_scripts() -> None:
    assert split_words("It's 3.5% of 10, 猫坐!") == [
        "It", "'", "s", "3.5%", "of", "10", ",", "猫", "坐", "!",
    ]  # fmt: skip


def test_interval_holds_the_mean_of_as_many_draws_as_it_says() -> None:
    draw = np.random.default_rng(5)
    hits = 0
    for trial in range(200):
        low, high = bootstrap_interval(draw.normal(3.0, 1.0, 100), seed=trial, rounds=500)
        hits += low <= 3.0 <= high
    assert 180 <= hits <= 199
