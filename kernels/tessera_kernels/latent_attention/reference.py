"""`latent_attention` in plain torch, sequence by sequence, computed in float32."""

from __future__ import annotations

import torch

from tessera_kernels.paged_attention.ragged import Ragged


def latent_attention(
    query_TQR: torch.Tensor, rope_TQO: torch.Tensor, cache_PSC: torch.Tensor, ragged: Ragged, *, scaling: float
) -> torch.Tensor:
    """Reference of `tessera_kernels.latent_attention.latent_attention`."""
    out_TQR = query_TQR.new_empty(query_TQR.shape)
    rank, size = query_TQR.shape[2], cache_PSC.shape[1]
    row = 0
    for sequence, count in enumerate(ragged.query_counts):
        if not count:
            continue
        context = int(ragged.context_B[sequence])
        pages = ragged.page_table_BM[sequence, : -(-context // size)]
        latent_LC = cache_PSC[pages].flatten(0, 1)[:context].float()
        query_NQC = torch.cat([query_TQR[row : row + count], rope_TQO[row : row + count]], dim=2).float()
        scores_QNL = torch.einsum("nqc,lc->qnl", query_NQC, latent_LC) * scaling
        position_L = torch.arange(context, device=scores_QNL.device)
        own_N = context - count + torch.arange(count, device=scores_QNL.device)
        scores_QNL = scores_QNL.masked_fill(position_L > own_N[:, None], float("-inf"))
        shares_QNL = torch.softmax(scores_QNL, dim=2)
        out_TQR[row : row + count] = torch.einsum("qnl,lr->nqr", shares_QNL, latent_LC[:, :rank]).to(out_TQR.dtype)
        row += count
    return out_TQR
