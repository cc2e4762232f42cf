"""The TORCH backend: dlattn's operations in PyTorch's own, with the same meanings, differentiable.

PyTorch's scaled_dot_product_attention does what it can; the options it lacks are composed in float32. Called by the
extension module with every argument by keyword. Shapes, dtypes and options are checked by then, and for CPU tensors
values and memory too.

One meaning differs: a NaN or infinity in the *value* of a key that is hidden within a sequence (by mask, window or
causality, not by its length, or that has a score of -inf) reaches the row, as it does in PyTorch: a weight of 0 times
NaN is NaN.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from . import _torch_rotary
from ._torch_rotary import check_tensors

append_kv = _torch_rotary.append_kv
apply_rotary_emb = _torch_rotary.apply_rotary_emb
rotary_append_kv = _torch_rotary.rotary_append_kv
rotary_embedding = _torch_rotary.rotary_embedding


class _Options:
    """The keywords that all attention operations share."""

    def __init__(self, op: str, keywords: dict[str, Any]) -> None:
        self.is_causal = bool(keywords["is_causal"])
        self.mask: Tensor | None = keywords["mask"]
        self.scale: float | None = None if keywords["scale"] is None else float(keywords["scale"])
        self.window: tuple[int, int] = tuple(keywords["window"])
        self.softcap = float(keywords["softcap"])
        self.sinks: Tensor | None = keywords["sinks"]
        self.alibi_slopes: Tensor | None = keywords["alibi_slopes"]
        self.bhld = keywords["layout"] == "bhld"
        out = keywords["out"]
        self.out, self.lse = out if isinstance(out, (tuple, list)) else (out, None)
        self.return_lse = bool(keywords["return_lse"])
        check_tensors(op, mask=self.mask, sinks=self.sinks, alibi_slopes=self.alibi_slopes, out=self.out, lse=self.lse)

    def mask_of(self, batch: int, len_q: int, len_k: int) -> Tensor | None:
        """The part [1, heads or 1, len_q or 1, len_k] of one sequence."""
        mask = self.mask
        if mask is None:
            return None
        if mask.ndim < 4:
            mask = mask[:, None, None] if mask.ndim == 2 else mask[:, None]
        b = 0 if mask.shape[0] == 1 else batch
        rows = slice(None) if mask.shape[2] == 1 else slice(len_q)
        return mask[b : b + 1, :, rows, :len_k]

    def reach(self, len_q: int) -> int:
        """How many keys before a sequence's last one its queries see at most, by the window; -1: all."""
        return -1 if self.window[0] < 0 else self.window[0] + len_q - 1

    def alibi_of(self, batch: int) -> Tensor | None:
        """The slopes [heads] of one sequence."""
        slopes = self.alibi_slopes
        return slopes[batch] if slopes is not None and slopes.ndim == 2 else slopes


def _visible(len_q: int, len_k: int, options: _Options, device: torch.device) -> Tensor | None:
    """Which keys causality and window let each query see, [len_q, len_k]; None: all."""
    left, right = options.window
    if options.is_causal:
        right = 0 if right < 0 else min(right, 0)
    if left < 0 and right < 0:
        return None
    last = torch.arange(len_q, device=device)[:, None] + (len_k - len_q)
    key = torch.arange(len_k, device=device)
    keep = torch.ones(len_q, len_k, dtype=torch.bool, device=device)
    if left >= 0:
        keep &= key >= last - left
    if right >= 0:
        keep &= key <= last + right
    return keep


def _sdpa_does(q: Tensor, k: Tensor, v: Tensor, options: _Options) -> bool:
    """Whether SDPA has the meaning asked for: plain attention, or square causal attention over finite keys."""
    plain = (
        options.mask is None
        and options.window == (-1, -1)
        and options.softcap == 0
        and options.sinks is None
        and options.alibi_slopes is None
        and not options.return_lse
        and min(q.shape[0], q.shape[1], q.shape[2], k.shape[1]) > 0
    )
    if not plain or not options.is_causal:
        return plain
    # SDPA aligns causal masks top-left, and lets a NaN of a hidden key reach the row.
    return q.shape[1] == k.shape[1] and bool(torch.isfinite(k).all())


def _sequence(q: Tensor, k: Tensor, v: Tensor, batch: int, options: _Options) -> tuple[Tensor, Tensor | None]:
    """One sequence: q [1, len_q, heads, dim], k and v [1, len_k, kv_heads, ...] -> out, lse [1, heads, len_q]."""
    if _sdpa_does(q, k, v, options):
        out = scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            is_causal=options.is_causal,
            scale=options.scale,
            enable_gqa=q.shape[2] != k.shape[2],
        )
        return out.transpose(1, 2), None
    return _composed(q, k, v, batch, options)


def _composed(q: Tensor, k: Tensor, v: Tensor, batch: int, options: _Options) -> tuple[Tensor, Tensor]:
    len_q, heads, dim = q.shape[1:]
    len_k, kv_heads = k.shape[1:3]
    group = heads // kv_heads if heads else 1
    scale = 1 / math.sqrt(dim) if options.scale is None else options.scale
    keys, values = (x.float().transpose(1, 2).repeat_interleave(group, 1) for x in (k, v))
    scores = q.float().transpose(1, 2) @ keys.transpose(2, 3) * scale
    if options.softcap > 0:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    keep = _visible(len_q, len_k, options, q.device)
    mask = options.mask_of(batch, len_q, len_k)
    if mask is not None:
        if mask.dtype == torch.bool:
            shown = mask
        else:
            scores = scores + mask.float()
            shown = mask != -math.inf
        keep = shown if keep is None else keep & shown
    slopes = options.alibi_of(batch)
    if slopes is not None:
        last = torch.arange(len_q, device=q.device)[:, None] + (len_k - len_q)
        distance = last - torch.arange(len_k, device=q.device)
        scores = scores - slopes.float()[:, None, None] * distance.abs()
    if keep is not None:
        scores = scores.masked_fill(~keep, -math.inf)
    sinks = None if options.sinks is None else options.sinks.float()[:, None, None]
    with torch.no_grad():
        row_max = scores.amax(-1, keepdim=True) if len_k else scores.new_full((*scores.shape[:3], 1), -math.inf)
        if sinks is not None:
            row_max = torch.maximum(row_max, sinks)
        row_max = row_max.masked_fill(row_max == -math.inf, 0)
    weights = torch.exp(scores - row_max)
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks - row_max)
    empty = total == 0
    total = total.masked_fill(empty, 1)
    lse = (row_max + torch.log(total)).masked_fill(empty, -math.inf)[..., 0]
    return ((weights / total) @ values).transpose(1, 2).to(q.dtype), lse


def _give(target: Tensor | None, value: Tensor | None) -> Tensor:
    assert value is not None
    return value if target is None else target.copy_(value)


def _dense(op: str, q: Tensor, k: Tensor, v: Tensor, seqlens_k: Tensor | None, **keywords: Any) -> Any:
    check_tensors(op, q=q, k=k, v=v, seqlens_k=seqlens_k)
    options = _Options(op, keywords)
    if options.bhld:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    batch_size, len_q, heads = q.shape[:3]
    if seqlens_k is None and options.mask is None and _sdpa_does(q, k, v, options):
        out, lse = _sequence(q, k, v, 0, options)  # the whole batch at once
    else:
        lengths = [k.shape[1]] * batch_size if seqlens_k is None else seqlens_k.tolist()
        outs = [q.new_empty(0, len_q, heads, v.shape[3])]
        lses = [torch.empty(0, heads, len_q, dtype=torch.float32, device=q.device)]
        for b, n in enumerate(lengths):
            piece, piece_lse = _sequence(q[b : b + 1], k[b : b + 1, :n], v[b : b + 1, :n], b, options)
            outs.append(piece)
            if piece_lse is not None:
                lses.append(piece_lse)
        out, lse = torch.cat(outs), torch.cat(lses)
    out = out.transpose(1, 2) if options.bhld else out
    if not options.return_lse:
        return _give(options.out, out)
    return _give(options.out, out), _give(options.lse, lse)


def attention(**keywords: Any) -> Any:
    """dlattn.attention."""
    return _dense("attention", **keywords)


def attn_prefill(**keywords: Any) -> Any:
    """dlattn.attn_prefill."""
    return _dense("attn_prefill", **keywords)


def attn_decode(**keywords: Any) -> Any:
    """dlattn.attn_decode."""
    return _dense("attn_decode", **keywords)


def _ragged(
    q: Tensor,
    v_dim: int,
    cu_seqlens_q: Tensor,
    keys_of: Callable[[int], tuple[Tensor, Tensor]],
    options: _Options,
) -> Any:
    """Each sequence of packed queries against keys_of(sequence), both [1, len_k, kv_heads, ...]."""
    bounds = cu_seqlens_q.tolist()
    out = q.new_zeros(q.shape[0], q.shape[1], v_dim) if options.out is None else options.out
    lse = options.lse
    if lse is None and options.return_lse:
        lse = torch.zeros(q.shape[1], q.shape[0], dtype=torch.float32, device=q.device)
    for b in range(len(bounds) - 1):
        rows = slice(bounds[b], bounds[b + 1])
        if rows.start == rows.stop:
            continue
        k, v = keys_of(b)
        piece, piece_lse = _sequence(q[None, rows], k, v, b, options)
        out[rows] = piece[0]
        if lse is not None and piece_lse is not None:
            lse[:, rows] = piece_lse[0]
    return (out, lse) if options.return_lse else out


def attn_varlen(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **keywords: Any) -> Any:
    """dlattn.attn_varlen."""
    op = "attn_varlen"
    check_tensors(op, q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    bounds = cu_seqlens_k.tolist()

    def keys_of(b: int) -> tuple[Tensor, Tensor]:
        return k[None, bounds[b] : bounds[b + 1]], v[None, bounds[b] : bounds[b + 1]]

    return _ragged(q, v.shape[2], cu_seqlens_q, keys_of, _Options(op, keywords))


def _gather(
    k_cache: Tensor, v_cache: Tensor, page_table: Tensor, length: int, left: int, bhld: bool, b: int
) -> tuple[Tensor, Tensor]:
    """The keys and values of sequence b, [1, length, kv_heads, ...]; zeros for those that no query sees.

    left: the most keys before the last one that any query sees; -1: all. Pages further left may have any number.
    """
    if bhld:
        k_cache, v_cache = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
    page_size = k_cache.shape[1]
    first = 0 if left < 0 else max(0, length - 1 - left) // page_size
    pages = page_table[b, first : (length + page_size - 1) // page_size].long()

    def gather(cache: Tensor) -> Tensor:
        hidden = cache.new_zeros(first * page_size, *cache.shape[2:])
        return torch.cat((hidden, cache[pages].flatten(0, 1)))[None, :length]

    return gather(k_cache), gather(v_cache)


def attn_paged_decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, seqlens_k: Tensor, **keywords: Any
) -> Any:
    """dlattn.attn_paged_decode."""
    op = "attn_paged_decode"
    check_tensors(op, q=q, k_cache=k_cache, v_cache=v_cache, page_table=page_table, seqlens_k=seqlens_k)
    options = _Options(op, keywords)
    if options.bhld:
        q = q.transpose(1, 2)
    lengths = seqlens_k.tolist()
    outs = [q.new_empty(0, *q.shape[1:3], v_cache.shape[3])]
    lses = [torch.empty(0, q.shape[2], q.shape[1], dtype=torch.float32, device=q.device)]
    for b, length in enumerate(lengths if q.shape[1] > 0 else [0] * len(lengths)):  # no query: no page is looked at
        k, v = _gather(k_cache, v_cache, page_table, length, options.reach(q.shape[1]), options.bhld, b)
        piece, piece_lse = _sequence(q[b : b + 1], k, v, b, options)
        outs.append(piece)
        if piece_lse is not None:
            lses.append(piece_lse)
    out = torch.cat(outs)
    out = _give(options.out, out.transpose(1, 2) if options.bhld else out)
    return (out, _give(options.lse, torch.cat(lses))) if options.return_lse else out


def attn_paged_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    seqlens_k: Tensor,
    cu_seqlens_q: Tensor,
    **keywords: Any,
) -> Any:
    """dlattn.attn_paged_prefill."""
    op = "attn_paged_prefill"
    check_tensors(op, q=q, k_cache=k_cache, v_cache=v_cache, page_table=page_table, cu_seqlens_q=cu_seqlens_q)
    check_tensors(op, seqlens_k=seqlens_k)
    options = _Options(op, keywords)
    lengths, bounds = seqlens_k.tolist(), cu_seqlens_q.tolist()

    def keys_of(b: int) -> tuple[Tensor, Tensor]:
        left = options.reach(bounds[b + 1] - bounds[b])
        return _gather(k_cache, v_cache, page_table, lengths[b], left, options.bhld, b)

    return _ragged(q, v_cache.shape[3], cu_seqlens_q, keys_of, options)


def merge_attention_states(
    outs: Tensor | Sequence[Tensor],
    lses: Tensor | Sequence[Tensor],
    layout: str,
    out: tuple[Tensor | None, Tensor | None] | None,
) -> tuple[Tensor, Tensor]:
    """dlattn.merge_attention_states."""
    op = "merge_attention_states"
    check_tensors(op, **{f"outs[{i}]": x for i, x in enumerate(outs)}, **{f"lses[{i}]": x for i, x in enumerate(lses)})
    lse = torch.stack(tuple(lses))  # [states, (batch,) heads, len]
    parts = torch.stack(tuple(outs)).float()
    per_row = lse if layout == "bhld" and lse.ndim == 4 else lse.transpose(-1, -2)  # as parts, without the last axis
    with torch.no_grad():
        row_max = per_row.amax(0)
        row_max = row_max.masked_fill(row_max == -math.inf, 0)
    weights = torch.exp(per_row - row_max)
    total = weights.sum(0)
    empty = total == 0
    total = total.masked_fill(empty, 1)
    parts = parts.masked_fill((per_row == -math.inf)[..., None], 0)
    merged = ((weights / total)[..., None] * parts).sum(0).to(outs[0].dtype)
    merged_lse = (row_max + torch.log(total)).masked_fill(empty, -math.inf)
    merged_lse = merged_lse if layout == "bhld" and lse.ndim == 4 else merged_lse.transpose(-1, -2)
    targets = (None, None) if out is None else out
    return _give(targets[0], merged), _give(targets[1], merged_lse)
