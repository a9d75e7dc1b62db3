"""A run's data: from the names in its settings to rows of tokens, with everything checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inlay.core.errors import ConfigError, DataError, RequestError
from inlay.core.records import Records
from inlay.models.text import Text
from inlay.tune.config import TuneConfig
from inlay.tune.data.chat_template import ChatTemplateWriter
from inlay.tune.data.conversations import Conversation, read_conversations
from inlay.tune.data.example import Dataset
from inlay.tune.data.files import read_records
from inlay.tune.data.packing import pack
from inlay.tune.data.sources import Source, find_sources
from inlay.tune.data.templates import template_named
from inlay.tune.data.tokens import Tokenized, TokenRules, tokenize
from inlay.tune.data.writing import TemplateWriter, Writer

# Second numbers of seeds, which no epoch has.
_SPLIT, _DRAW = 2**32 - 1, 2**32 - 2


@dataclass(frozen=True)
class Conversations:
    """Conversations of a run.

    Attributes:
        train: those that are trained on.
        evaluation: those that are held out, or of `eval_dataset`.
        notes: which records were left out, a line for each file that has such.
    """

    train: list[Conversation]
    evaluation: list[Conversation]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class TuneData:
    """Rows of a run.

    Attributes:
        train: what is trained on, packed if the settings say so.
        evaluation: what is evaluated, a sample a row; None: nothing.
        notes: what a user should know of the data, a line each.
    """

    train: Dataset
    evaluation: Dataset | None
    notes: tuple[str, ...]


def load_data(config: TuneConfig, text: Text) -> TuneData:
    """Read, write, tokenize, cut and pack a run's data.

    Args:
        config: of the run.
        text: the model's tokenizer.

    Raises:
        ConfigError: a dataset, file or template is not there, or the template does not fit.
        DataError: data are not as they must be; with file, line and column of the first record.
    """
    writer = make_writer(config, text)
    conversations = load_conversations(config)
    if not conversations.train:
        raise ConfigError("dataset is not set: name what is trained on, as in dataset_info.json")
    rules = TokenRules(
        cutoff_len=config.cutoff_len,
        train_on_prompt=config.train_on_prompt,
        mask_history=config.mask_history,
        batch_size=config.preprocessing_batch_size,
    )
    notes = [*conversations.notes, *template_notes(config, writer, text)]
    train = tokenize(conversations.train, writer, text, rules)
    notes += _cut_notes(train, "training", config.cutoff_len)
    if not train.dataset.num_loss_tokens:
        raise DataError(
            f"no token of the {len(train.dataset)} training samples has a loss: cutoff_len="
            f"{config.cutoff_len} may be too short"
        )
    evaluation = None
    if conversations.evaluation:
        held_out = tokenize(conversations.evaluation, writer, text, rules)
        notes += _cut_notes(held_out, "evaluation", config.cutoff_len)
        evaluation = held_out.dataset
    rows = pack(train.dataset, config.cutoff_len) if config.packs else train.dataset
    return TuneData(rows, evaluation, tuple(notes))


def load_conversations(config: TuneConfig) -> Conversations:
    """Read a run's datasets and hold out what is evaluated.

    Raises:
        ConfigError, DataError: as `load_data`.
    """
    folder = Path(config.dataset_dir).expanduser()
    train, notes = _read(find_sources(config.dataset, folder), config)
    if not config.val_size:
        evaluation, of_evaluation = _read(find_sources(config.eval_dataset, folder), config)
        return Conversations(train, evaluation, (*notes, *of_evaluation))
    share = config.val_size < 1
    num_held = round(len(train) * config.val_size) if share else int(config.val_size)
    if not 0 < num_held < len(train):
        raise ConfigError(
            f"val_size={config.val_size:g} holds out {num_held} of {len(train)} samples: both "
            "parts must have some"
        )
    order = np.random.default_rng((config.seed, _SPLIT)).permutation(len(train))
    held = set(order[:num_held].tolist())
    return Conversations(
        [one for number, one in enumerate(train) if number not in held],
        [train[number] for number in sorted(held)],
        tuple(notes),
    )


def make_writer(config: TuneConfig, text: Text) -> Writer:
    """What writes a run's conversations.

    Raises:
        ConfigError: there is no such template, or it does not fit the model.
    """
    if config.template is None:
        return ChatTemplateWriter(
            text, default_system=config.default_system, enable_thinking=config.enable_thinking
        )
    return TemplateWriter(
        config.template,
        template_named(config.template),
        text,
        default_system=config.default_system,
        enable_thinking=config.enable_thinking,
        last_thought_only=config.mask_history,
    )


def template_notes(config: TuneConfig, writer: Writer, text: Text) -> list[str]:
    """A line where the named template writes otherwise than the tokenizer's own, else none."""
    if config.template is None or text.chat_template is None:
        return []
    messages = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
    sample = Conversation(messages, (), Records(Path(), [], ()), 0)
    try:
        own = ChatTemplateWriter(text, default_system=config.default_system)
        whole = [
            tokenize([sample], one, text, TokenRules(cutoff_len=2**20)) for one in (writer, own)
        ]
    except (DataError, RequestError):
        return []
    written, expected = (
        text.decode(one.dataset[0].input_ids_N.tolist(), skip_special_tokens=False) for one in whole
    )
    if written.strip() == expected.strip():
        return []
    return [
        f"template {config.template} writes {written!r}, where the model's own chat template, "
        f"which chat and serving use, has {expected!r}"
    ]


def _read(sources: Sequence[Source], config: TuneConfig) -> tuple[list[Conversation], list[str]]:
    found: list[Conversation] = []
    notes: list[str] = []
    for source in sources:
        files = [read_records(file) for file in source.files]
        counts = [len(records.rows) for records in files]
        chosen = _chosen(sum(counts), source.num_samples, config)
        first = 0
        for records, count in zip(files, counts, strict=True):
            rows = chosen[(chosen >= first) & (chosen < first + count)] - first
            more, left_out = read_conversations(
                records, source, rows.tolist(), skip_bad=config.skip_bad_records
            )
            found += more
            notes += left_out
            first += count
    return found, notes


def _chosen(
    num_rows: int, num_samples: int | None, config: TuneConfig
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Numbers of the records that are taken of a dataset."""
    rows = np.arange(num_rows)
    if num_samples is not None:
        draw = np.random.default_rng((config.seed, _DRAW))
        rows = draw.permutation(num_rows)[:num_samples]
        more = draw.integers(num_rows, size=num_samples - len(rows))
        rows = np.concatenate([rows, more])
    return rows[: config.max_samples]


def _cut_notes(found: Tokenized, what: str, cutoff_len: int) -> list[str]:
    if not found.num_cut:
        return []
    return [
        f"{found.num_cut} of {len(found.lengths)} {what} samples are longer than cutoff_len="
        f"{cutoff_len} tokens, the longest {found.lengths.max()}: they are cut"
    ]
