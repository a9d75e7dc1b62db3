"""One row as text, with its loss mask: what `inlay tune preview` shows."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from inlay.models.text import Text
from inlay.tune.data.example import NO_LOSS, Example


@dataclass(frozen=True)
class Span:
    """Neighbouring tokens of a row that all have a loss, or all have none.

    Attributes:
        text: of the tokens, special ones written out.
        num_tokens: how many there are.
        has_loss: the model is to say them.
        begins_segment: a sample begins here.
    """

    text: str
    num_tokens: int
    has_loss: bool
    begins_segment: bool


def spans_of(example: Example, text: Text) -> Iterator[Span]:
    """The spans of a row, in order."""
    stream = text.stream(skip_special_tokens=False)
    starts = set(example.segment_starts_S.tolist())
    tokens = list(zip(example.input_ids_N.tolist(), example.labels_N.tolist(), strict=True))
    # What a token adds to the text; part characters are with the token that completes them.
    pieces = [stream.push(token_id) for token_id, _ in tokens]
    segment = 0
    marks = []
    for at, (_, label) in enumerate(tokens):
        segment += at in starts
        marks.append((segment, label != NO_LOSS))
    before = 0
    for (number, has_loss), group in groupby(range(len(tokens)), key=marks.__getitem__):
        members = list(group)
        written = "".join(pieces[at] for at in members)
        if members[-1] == len(tokens) - 1:
            written += stream.flush()
        yield Span(written, len(members), has_loss, number != before)
        before = number
