"""What the tests of attention share."""

import numpy as np
import torch

from inlay.models.gpu.attention import Paged

LAYERS = 2


def problem(requests, heads, kv_heads, head_dim, value_dim, device, *, page_tokens, dtype):
    """Pages apart from each other, and queries; `requests` are (new tokens, context)."""
    rng = np.random.default_rng(7)
    pages = max(-(-context // page_tokens) for _, context in requests)
    count = len(requests) * pages + 3
    planes = 1 if value_dim else 2
    size = (count, LAYERS, planes, page_tokens, kv_heads, head_dim)
    data = torch.from_numpy(rng.standard_normal(size, dtype=np.float32)).to(device, dtype)
    table = rng.permutation(count)[: len(requests) * pages].reshape(len(requests), pages)
    starts = np.cumsum([0, *(new for new, _ in requests)])
    paged = Paged(
        data,
        1,
        *(
            torch.tensor(values, dtype=torch.int32, device=device)
            for values in (table, starts, [context for _, context in requests])
        ),
    )
    q = rng.standard_normal((starts[-1], heads, head_dim), dtype=np.float32)
    return paged, torch.from_numpy(q).to(device)


def expected_rows(q_THD, paged, scale, window, sinks_H, value_dim, softcap=0.0):
    data = paged.data.double()
    shared_by = q_THD.shape[1] // data.shape[4]
    rows = []
    starts = paged.query_starts_B1.tolist()
    for b, length in enumerate(paged.context_lens_B.tolist()):
        planes = data[paged.page_table_BP[b].long(), paged.layer]
        k = planes[:, 0].flatten(0, 1)[:length].repeat_interleave(shared_by, dim=1)
        v = k[..., :value_dim] if value_dim else planes[:, 1].flatten(0, 1)[:length]
        v = v if value_dim else v.repeat_interleave(shared_by, dim=1)
        count = starts[b + 1] - starts[b]
        for i in range(count):
            position = length - count + i
            since = max(0, position - window + 1) if window else 0
            seen = slice(since, position + 1)
            q = q_THD[starts[b] + i].double()
            scores = torch.einsum("hd,nhd->hn", q, k[seen]) * scale
            if softcap:
                scores = softcap * (scores / softcap).tanh()
            if sinks_H is not None:
                scores = torch.cat((scores, sinks_H.double()[:, None]), dim=1)
            weights = scores.softmax(-1)[:, : position + 1 - since]
            rows.append(torch.einsum("hn,nhd->hd", weights, v[seen]))
    return torch.stack(rows).float()
