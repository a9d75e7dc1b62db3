"""Answers of a model, with its adapters, to evaluation data, and their scores.

The serving engine generates: prompts run together, and an answer does not depend on which others
run beside it. Files are those of LLaMA-Factory.
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from inlay.core.errors import ConfigError
from inlay.core.messages import SamplingParams
from inlay.core.text_files import read_json_object
from inlay.engine import Engine
from inlay.models.text import Text
from inlay.tune.config import TuneConfig
from inlay.tune.data.load import load_conversations, make_writer, template_notes
from inlay.tune.data.tokens import Question, questions
from inlay.tune.folders import check_writable, write_whole
from inlay.tune.scores import Scores, check_scores, score
from inlay.tune.tuned_engine import ADAPTER, tuned_engine

ANSWERS = "generated_predictions.jsonl"
RESULTS = "predict_results.json"
ALL_RESULTS = "all_results.json"

_REMEDY = "scores are added to it: remove it, or name another output_dir"
_NEW_TOKENS = 1024
_TEMPERATURE, _TOP_P, _TOP_K = 0.95, 0.7, 50  # of LLaMA-Factory, where tokens are drawn


@dataclass(frozen=True)
class Predictions:
    """Answers and what they are worth.

    Attributes:
        prompts: what the model was given, special tokens included.
        answers: what it said.
        labels: the answers hoped for.
        scores: of each answer and of all.
        results: what `predict_results.json` holds.
    """

    prompts: list[str]
    answers: list[str]
    labels: list[str]
    scores: Scores
    results: dict[str, float | str]


def predict(
    config: TuneConfig,
    *,
    say: Callable[[str], None] = lambda line: None,
) -> Predictions:
    """Answer evaluation data, score the answers, and write both to `output_dir`.

    Evaluation data are those of `eval_dataset`, or what `val_size` holds out. Without
    `adapter_name_or_path` the model answers as it is.

    Args:
        say: takes what a user should know, a line each time.

    Raises:
        ConfigError: there are no evaluation data, a template or adapter does not fit, `output_dir`
            takes no files, or what computes scores is missing.
        DataError, ModelError: as `load_data` and the engine.
        ContextLengthError: a prompt leaves no room for an answer.
    """
    check_scores()
    output = Path(config.output_dir)
    check_writable(output, "output_dir")
    before = _earlier_results(output)
    serving = tuned_engine(config)
    text = Text.load(Path(str(serving.model)))
    writer = make_writer(config, text)
    for note in template_notes(config, writer, text):
        say(note)
    conversations = load_conversations(config)
    for note in conversations.notes:
        say(note)
    if not conversations.evaluation:
        raise ConfigError(
            "there is nothing to answer: set eval_dataset, or val_size to hold out some of dataset"
        )
    asked = questions(conversations.evaluation, writer, text, config.cutoff_len)
    with closing(Engine(serving)) as engine:
        began = time.perf_counter()
        answers = _answers(engine, asked, config)
        seconds = time.perf_counter() - began
    labels = [_label(one, text, config) for one in asked]
    scores = score(answers, labels)
    results: dict[str, float | str] = {
        **{f"predict_{name}": value for name, value in scores.means.items()},
        "predict_sacrebleu_signature": scores.sacrebleu_signature,
        "predict_rouge_words": scores.words,
        "predict_runtime": round(seconds, 4),
        "predict_samples_per_second": round(len(asked) / seconds, 3),
    }
    prompts = [text.decode(one.prompt, skip_special_tokens=False) for one in asked]
    found = Predictions(prompts, answers, labels, scores, results)
    _write(found, output, before)
    return found


def _answers(engine: Engine, asked: list[Question], config: TuneConfig) -> list[str]:
    """The model's answers, in the order of the questions.

    Raises:
        InlayError: as the engine has it; the first one.
    """
    room = engine.info.max_context_tokens
    most = config.max_new_tokens or _NEW_TOKENS
    params = [
        _sampling(config, number, min(most, max(1, room - len(one.prompt))))
        for number, one in enumerate(asked)
    ]
    adapter = ADAPTER if config.adapter_name_or_path else ""
    found = engine.generate([one.prompt for one in asked], params, adapter=adapter)
    for completion in found:
        if completion.error is not None:
            raise completion.error
    return [completion.text for completion in found]


def _sampling(config: TuneConfig, number: int, max_tokens: int) -> SamplingParams:
    """How the tokens of an answer are chosen; each answer has draws of its own."""
    temperature, top_p, top_k = 0.0, 1.0, 0
    if config.samples:
        temperature = _TEMPERATURE if config.temperature is None else config.temperature
        top_p = _TOP_P if config.top_p is None else config.top_p
        top_k = _TOP_K if config.top_k is None else config.top_k
    return SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        repetition_penalty=config.repetition_penalty,
        max_tokens=max_tokens,
        seed=config.seed + number,
        skip_special_tokens=config.skip_special_tokens,
    )


def _label(one: Question, text: Text, config: TuneConfig) -> str:
    """The answer hoped for, up to what ends it: a template may write more behind that."""
    said = takewhile(lambda token_id: token_id not in text.eos_token_ids, one.answer)
    return text.decode(list(said), skip_special_tokens=config.skip_special_tokens)


def _earlier_results(output: Path) -> dict[str, Any]:
    """What `all_results.json` holds, which scores are added to."""
    file = output / ALL_RESULTS
    try:
        return read_json_object(file, remedy=_REMEDY, error=ConfigError) if file.is_file() else {}
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error}): {_REMEDY}") from None


def _write(found: Predictions, output: Path, before: Mapping[str, Any]) -> None:
    rows = zip(found.prompts, found.answers, found.labels, strict=True)
    lines = [
        json.dumps({"prompt": prompt, "predict": said, "label": label}, ensure_ascii=False) + "\n"
        for prompt, said, label in rows
    ]
    write_whole(output / ANSWERS, "".join(lines).encode())
    write_whole(output / RESULTS, json.dumps(found.results, indent=2).encode())
    write_whole(output / ALL_RESULTS, json.dumps({**before, **found.results}, indent=2).encode())
