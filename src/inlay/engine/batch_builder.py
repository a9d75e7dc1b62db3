"""Lays the chunks of one step end to end as a `ForwardBatch`.

Legend: T tokens of the step, B chunks, P pages, R rows of logits, L MoE layers, K experts per
token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inlay.engine.scheduler import Chunk
from inlay.models.batch import AdapterRows, ForwardBatch, LayerDone


@dataclass(frozen=True, slots=True)
class StepBatch:
    """A step's arrays and where each chunk's results are.

    Attributes:
        forward: input of the model.
        first_rows_B: index among the R rows of logits of each chunk's first one.
        num_rows_B: rows of logits of each chunk: none, one, or one per token.
        starts_B: index among the T tokens of each chunk's first one.
    """

    forward: ForwardBatch
    first_rows_B: list[int]
    num_rows_B: list[int]
    starts_B: list[int]


def build_batch(
    chunks: Sequence[Chunk],
    *,
    page_tokens: int,
    moe_layers: int,
    experts_per_token: int,
    layer_done: LayerDone | None = None,
) -> StepBatch:
    """Build the arrays of one step. Cost: about 2 us per chunk, and 30 us."""
    token_ids: list[int] = []
    positions: list[int] = []
    starts = [0]
    context_lens: list[int] = []
    logit_rows: list[int] = []
    first_rows: list[int] = []
    num_rows: list[int] = []
    decodes: list[bool] = []
    traced = False
    adapters: list[AdapterRows] = []
    for chunk in chunks:
        choice, start, stop = chunk.choice, chunk.start, chunk.stop
        token_ids += choice.tokens(start, stop)
        positions += range(start, stop)
        end = len(token_ids)
        # Also when they are computed again after a preemption.
        generated = min(stop - start, max(0, stop - len(choice.request.prompt)))
        decodes += [False] * (stop - start - generated) + [True] * generated
        context_lens.append(stop)
        first_rows.append(len(logit_rows))
        if wants_prompt_rows(chunk):
            logit_rows += range(starts[-1], end)
        elif chunk.samples:
            logit_rows.append(end - 1)
        num_rows.append(len(logit_rows) - first_rows[-1])
        starts.append(end)
        traced = traced or choice.request.expert_counts_LE is not None
        adapter = choice.request.adapter
        if adapter is not None:
            first = starts[-2]
            if adapters and adapters[-1].adapter is adapter and adapters[-1].end == first:
                first = adapters.pop().first
            adapters.append(AdapterRows(adapter, first, end))
    forward = ForwardBatch(
        token_ids_T=np.array(token_ids, np.int32),
        positions_T=np.array(positions, np.int32),
        query_starts_B1=np.array(starts, np.int32),
        context_lens_B=np.array(context_lens, np.int32),
        page_table_BP=_page_table(chunks, page_tokens),
        logit_rows_R=np.array(logit_rows, np.int32),
        decode_T=np.array(decodes, np.bool_),
        expert_ids_LTK=(
            np.zeros((moe_layers, len(token_ids), experts_per_token), np.int32)
            if traced and moe_layers
            else None
        ),
        layer_done=layer_done,
        adapters=adapters,
    )
    return StepBatch(forward, first_rows, num_rows, starts)


def wants_prompt_rows(chunk: Chunk) -> bool:
    """Whether the log probabilities of prompt tokens are still to be collected in a chunk."""
    collected = chunk.choice.request.prompt_logprobs
    return collected is not None and len(collected) < len(chunk.choice.request.prompt)


def _page_table(
    chunks: Sequence[Chunk], page_tokens: int
) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    widths = [-(-chunk.stop // page_tokens) for chunk in chunks]
    table_BP = np.zeros((len(chunks), max(widths)), np.int32)
    for row, (chunk, width) in enumerate(zip(chunks, widths, strict=True)):
        hold = chunk.choice.hold
        assert hold is not None
        table_BP[row, :width] = np.frombuffer(hold.pages, np.int32, width)
    return table_BP
