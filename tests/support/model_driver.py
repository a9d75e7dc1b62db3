"""Drives a `Model` without an engine: gives each sequence pages and builds its batches."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from inlay.models.adapter_weights import AdapterWeights
from inlay.models.batch import AdapterRows, ForwardBatch
from inlay.models.kv_pool import KvPool
from inlay.models.model import Model


@dataclass
class Running:
    """One request: its tokens so far, how many are computed, and its pages."""

    tokens: list[int]
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    adapter: AdapterWeights | None = None


class ModelDriver:
    """Sequences over one pool. Pages are handed out from high to low, so they lie apart."""

    def __init__(
        self, model: Model, num_pages: int = 128, page_tokens: int = 16, dtype: str = "auto"
    ) -> None:
        self.model = model
        kv_format = model.kv_format(dtype=dtype, page_tokens=page_tokens)
        self.pool: KvPool = model.new_kv_pool(kv_format, num_pages)
        self.page_tokens = page_tokens
        self._free = list(range(1, num_pages, 2)) + list(range(0, num_pages, 2))

    def add(
        self,
        tokens: Sequence[int],
        shared_with: Running | None = None,
        adapter: AdapterWeights | None = None,
    ) -> Running:
        """A new sequence; with `shared_with`, full pages of a common prefix are reused."""
        sequence = Running(list(tokens), adapter=adapter)
        if shared_with is not None:
            limit = min(len(sequence.tokens) - 1, shared_with.computed)
            same = 0
            while same < limit and sequence.tokens[same] == shared_with.tokens[same]:
                same += 1
            shared = same // self.page_tokens
            sequence.pages = shared_with.pages[:shared]
            sequence.computed = shared * self.page_tokens
        return sequence

    def step(
        self,
        work: Sequence[tuple[Running, int]],
        *,
        all_rows: bool = False,
        expert_ids: np.ndarray | None = None,
    ) -> list[torch.Tensor]:
        """Compute `n` more tokens of each sequence: logits of the last one (or all) of each."""
        ids, positions, starts, lens, rows, decodes = [], [], [0], [], [], []
        adapters = []
        for sequence, count in work:
            end = sequence.computed + count
            assert count >= 1 and end <= len(sequence.tokens)
            while len(sequence.pages) * self.page_tokens < end:
                sequence.pages.append(self._free.pop())
            ids += sequence.tokens[sequence.computed : end]
            positions += range(sequence.computed, end)
            decodes += [count == 1 and sequence.computed > 0] * count
            rows += range(starts[-1], len(ids)) if all_rows else [len(ids) - 1]
            if sequence.adapter is not None:
                adapters.append(AdapterRows(sequence.adapter, starts[-1], len(ids)))
            starts.append(len(ids))
            lens.append(end)
            sequence.computed = end
        width = max(len(sequence.pages) for sequence, _ in work)
        table = np.zeros((len(work), width), np.int32)
        for row, (sequence, _) in zip(table, work, strict=True):
            row[: len(sequence.pages)] = sequence.pages
        batch = ForwardBatch(
            token_ids_T=np.array(ids, np.int32),
            positions_T=np.array(positions, np.int32),
            query_starts_B1=np.array(starts, np.int32),
            context_lens_B=np.array(lens, np.int32),
            page_table_BP=table,
            logit_rows_R=np.array(rows, np.int32),
            decode_T=np.array(decodes),
            expert_ids_LTK=expert_ids,
            adapters=adapters,
        )
        logits = torch.as_tensor(self.model.forward(batch, self.pool))
        assert logits.dtype == torch.float32 and logits.shape == (len(rows), self.model.shape.vocab)
        counts = [count if all_rows else 1 for _, count in work]
        return list(logits.cpu().split(counts))

    def prefill(self, tokens: Sequence[int], chunks: Sequence[int] = ()) -> torch.Tensor:
        """Logits of every token of a new sequence, computed in chunks of these sizes in turn."""
        sequence = self.add(tokens)
        parts, turn = [], 0
        while sequence.computed < len(tokens):
            count = chunks[turn % len(chunks)] if chunks else len(tokens)
            turn += 1
            count = min(count, len(tokens) - sequence.computed)
            parts += self.step([(sequence, count)], all_rows=True)
        return torch.cat(parts)

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """The `count` tokens of greedy decoding."""
        sequence = self.add(tokens)
        todo = len(tokens)
        for _ in range(count):
            (logits,) = self.step([(sequence, todo)])
            sequence.tokens.append(int(logits[-1].argmax()))
            todo = 1
        return sequence.tokens[len(tokens) :]
