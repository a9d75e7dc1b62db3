"""Token ids and labels of conversations, many at a time: the loss mask, and what is cut.

Shape suffixes as in `inlay.tune.data.example`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from inlay.models.text import Text
from inlay.tune.data.conversations import Conversation
from inlay.tune.data.example import NO_LOSS, Dataset, Int32Array
from inlay.tune.data.writing import Piece, Turn, Writer, texts_of


@dataclass(frozen=True, kw_only=True)
class TokenRules:
    """What of a sample is kept, and what has a loss.

    Attributes:
        cutoff_len: tokens of a sample at most.
        train_on_prompt: prompts have a loss as well.
        mask_history: only the last response has a loss, and earlier turns go first where there are
            too many tokens.
        batch_size: samples that are tokenized at a time.
    """

    cutoff_len: int
    train_on_prompt: bool = False
    mask_history: bool = False
    batch_size: int = 1000


@dataclass(frozen=True)
class Tokenized:
    """Samples as rows, one each.

    Attributes:
        dataset: the rows, in the order of the conversations.
        lengths: tokens of each sample before any were cut, int64.
        num_cut: samples that lost tokens.
    """

    dataset: Dataset
    lengths: Int32Array
    num_cut: int


def tokenize(
    conversations: Sequence[Conversation], writer: Writer, text: Text, rules: TokenRules
) -> Tokenized:
    """Write, tokenize and cut conversations.

    Raises:
        DataError: a conversation cannot be written; with its place.

    Cost: tokenizing, on all cores; Python once per turn.
    """
    ids: list[Int32Array] = []
    labels: list[Int32Array] = []
    lengths: list[int] = []
    kept: list[int] = []
    for first in range(0, len(conversations), rules.batch_size):
        written = [writer.write(one) for one in conversations[first : first + rules.batch_size]]
        encoded = _encode(written, text)
        rows = [_row(turns, rules) for turns in encoded]
        parts = [part for row in rows for part in row]
        ids.append(_joined([part.token_ids for part in parts]))
        labels.append(_labels(parts, ids[-1]))
        kept += [sum(len(part.token_ids) for part in row) for row in rows]
        lengths += [
            sum(len(turn.prompt) + len(turn.response) for turn in turns) for turns in encoded
        ]
    starts = np.concatenate(([0], np.cumsum(kept, dtype=np.int64)))
    dataset = Dataset(
        np.concatenate([*ids, _joined([])]),
        np.concatenate([*labels, _joined([])]),
        starts,
        starts[:-1],
    )
    before = np.array(lengths, np.int32)
    return Tokenized(dataset, before, int((before > np.array(kept, np.int32)).sum()))


@dataclass(frozen=True)
class Question:
    """What a model is asked, and the answer hoped for, both as token ids."""

    prompt: list[int]
    answer: list[int]


def questions(
    conversations: Sequence[Conversation], writer: Writer, text: Text, cutoff_len: int
) -> list[Question]:
    """All that comes before each conversation's last response, and that response.

    A prompt that is longer than `cutoff_len` loses its beginning, so that the question stays.

    Raises:
        DataError: a conversation cannot be written; with its place.
    """
    found = []
    for turns in _encode([writer.write(one) for one in conversations], text):
        earlier = chain.from_iterable((turn.prompt, turn.response) for turn in turns[:-1])
        ids = [*chain.from_iterable(earlier), *turns[-1].prompt]
        found.append(Question(ids[-cutoff_len:], turns[-1].response))
    return found


def cut_lengths(prompt: int, response: int, room: int) -> tuple[int, int]:
    """How many tokens of a prompt and of its response are kept.

    A response of less than half the room stays whole, and so does a prompt; two long ones are cut
    in proportion.

    Args:
        prompt: tokens of the prompt.
        response: tokens of the response.
        room: tokens that both may have.

    Source: LLaMA-Factory.
    """
    if prompt + response <= room:
        return prompt, response
    if 2 * response < room:
        kept = response
    elif 2 * prompt < room:
        kept = room - prompt
    else:
        kept = room * response // (prompt + response)
    return min(room - kept, prompt), kept


@dataclass(frozen=True)
class _Encoded:
    """The token ids of a turn."""

    prompt: list[int]
    response: list[int]
    instead: int | None


@dataclass(frozen=True)
class _Part:
    """Token ids that have a loss or have none.

    Attributes:
        token_ids: the ids.
        has_loss: the label of each is the token itself.
        instead: label of the first one; None: like the others.
    """

    token_ids: list[int]
    has_loss: bool
    instead: int | None = None


def _encode(written: Sequence[Sequence[Turn]], text: Text) -> list[list[_Encoded]]:
    """The token ids of all turns, tokenized together."""
    texts = [piece for turns in written for piece in texts_of(turns)]
    found = iter(text.encode_batch(texts, add_special_tokens=False))

    def ids(pieces: Sequence[Piece]) -> list[int]:
        each = (next(found) if isinstance(piece, str) else [piece] for piece in pieces)
        return list(chain.from_iterable(each))

    return [
        [_Encoded(ids(turn.prompt), ids(turn.response), turn.instead) for turn in turns]
        for turns in written
    ]


def _row(turns: Sequence[_Encoded], rules: TokenRules) -> list[_Part]:
    """The parts of a sample that fit. Later turns go first with `mask_history`."""
    room = rules.cutoff_len
    kept: list[tuple[_Part, _Part]] = []
    order = list(enumerate(turns))
    for number, turn in reversed(order) if rules.mask_history else order:
        if room <= 0:
            break
        num_prompt, num_response = cut_lengths(len(turn.prompt), len(turn.response), room)
        room -= num_prompt + num_response
        learned = not rules.mask_history or number == len(turns) - 1
        prompt = _Part(
            turn.prompt[:num_prompt],
            rules.train_on_prompt,
            turn.instead if learned and not rules.train_on_prompt else None,
        )
        kept.append((prompt, _Part(turn.response[:num_response], learned)))
    return list(chain.from_iterable(reversed(kept) if rules.mask_history else kept))


def _labels(parts: Sequence[_Part], ids: Int32Array) -> Int32Array:
    lengths = np.array([len(part.token_ids) for part in parts])
    has_loss = np.repeat([part.has_loss for part in parts], lengths)
    labels = np.where(has_loss, ids, np.int32(NO_LOSS))
    starts = np.cumsum(lengths) - lengths
    for start, part in zip(starts, parts, strict=True):
        if part.instead is not None and part.token_ids:
            labels[start] = part.instead
    return labels


def _joined(lists: Sequence[list[int]]) -> Int32Array:
    total = sum(map(len, lists))
    return np.fromiter(chain.from_iterable(lists), np.int32, total)
