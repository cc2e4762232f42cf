"""The TORCH backend of rotary embedding and of writes into a paged cache; see _torch.py."""

from typing import Any

import torch
from torch import Tensor


def check_tensors(op: str, **tensors: Any) -> None:
    """The TORCH backend takes torch tensors and nothing else."""
    for name, tensor in tensors.items():
        if tensor is not None and not isinstance(tensor, Tensor):
            kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}".removeprefix("builtins.")
            article = "an" if kind[0] in "aeio" else "a"
            raise ValueError(
                f"{op}: {name} is {article} {kind}, expected a torch.Tensor (= the TORCH backend is in force)"
            )


def _rows_of(table: Tensor, positions: Tensor | None, batch_size: int, length: int) -> Tensor:
    """The table's rows of all tokens, float32 [batch or 1, length, rotary_dim / 2]."""
    if table.ndim == 3:
        return table.float()  # gathered already
    if positions is None:
        positions = torch.arange(length, device=table.device)[None]
    positions = positions.reshape(batch_size, length) if positions.ndim == 1 else positions
    inside = (positions >= 0) & (positions < table.shape[0])  # on a GPU a position may be outside: NaN
    if table.shape[0] == 0:
        return table.new_full((batch_size, length, table.shape[1]), torch.nan, dtype=torch.float32)
    rows = table[positions.clamp(0, table.shape[0] - 1).long()].float()
    return rows.masked_fill(~inside[..., None], torch.nan)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """x [batch, length, heads, dim], cos and sin [batch or 1, length, rotary_dim / 2]."""
    half = cos.shape[-1]
    cos, sin = cos[:, :, None], sin[:, :, None]
    turning = x[..., : 2 * half].float()
    if interleaved:
        a, b = turning[..., 0::2], turning[..., 1::2]
    else:
        a, b = turning[..., :half], turning[..., half:]
    first, second = a * cos - b * sin, b * cos + a * sin
    turned = torch.stack((first, second), -1).flatten(-2) if interleaved else torch.cat((first, second), -1)
    return torch.cat((turned.to(x.dtype), x[..., 2 * half :]), -1)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, interleaved: bool, bhld: bool) -> Tensor:
    packed = x.ndim == 3
    tokens = x[None] if packed else x.transpose(1, 2) if bhld else x
    batch_size, length = tokens.shape[:2]
    if packed and positions is not None:
        positions = positions.reshape(1, -1)
    if packed and cos.ndim == 3:
        cos, sin = (table.reshape(1, length, table.shape[-1]) for table in (cos, sin))
    rows = [_rows_of(table, positions, batch_size, length) for table in (cos, sin)]
    result = _rotate(tokens, rows[0], rows[1], interleaved)
    return result[0] if packed else result.transpose(1, 2) if bhld else result


def rotary_embedding(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    interleaved: bool,
    inplace: bool,
    layout: str,
    out: tuple[Tensor | None, Tensor | None] | None,
) -> tuple[Tensor, Tensor | None]:
    """dlattn.rotary_embedding."""
    op = "rotary_embedding"
    q_out, k_out = (q, k) if inplace else (None, None) if out is None else out
    check_tensors(op, q=q, k=k, cos=cos, sin=sin, positions=positions, q_out=q_out, k_out=k_out)
    results: list[Tensor | None] = []
    for x in (q, k):
        done = None if x is None else _rotated(x, cos, sin, positions, interleaved, layout == "bhld")
        results.append(done)
    for i, target in enumerate((q_out, k_out)):
        done = results[i]
        if target is not None and done is not None:
            results[i] = target.copy_(done)
    assert results[0] is not None
    return results[0], results[1]


def apply_rotary_emb(x: Tensor, freqs: tuple[Tensor, Tensor]) -> Tensor:
    """dlattn.apply_rotary_emb."""
    cos, sin = freqs
    check_tensors("apply_rotary_emb", x=x, cos=cos, sin=sin)
    return _rotated(x, cos, sin, None, True, False)


def append_kv(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, layout: str, op: str = "append_kv"
) -> None:
    """dlattn.append_kv."""
    check_tensors(op, k=k, v=v, k_cache=k_cache, v_cache=v_cache, slot_mapping=slot_mapping)
    if layout == "bhld":
        k_cache, v_cache = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
        k, v = (x.transpose(1, 2) if x.ndim == 4 else x for x in (k, v))
    k, v = (x.flatten(0, 1) if x.ndim == 4 else x for x in (k, v))
    slots = slot_mapping.reshape(-1).long()
    kept = slots >= 0
    slots = slots[kept]
    page_size = max(k_cache.shape[1], 1)
    k_cache[slots // page_size, slots % page_size] = k[kept]
    v_cache[slots // page_size, slots % page_size] = v[kept]


def rotary_append_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    interleaved: bool,
    layout: str,
    out: Tensor | None,
) -> Tensor:
    """dlattn.rotary_append_kv."""
    op = "rotary_append_kv"
    check_tensors(op, q=q, k=k, cos=cos, sin=sin, positions=positions, out=out)
    check_tensors(op, v=v, k_cache=k_cache, v_cache=v_cache, slot_mapping=slot_mapping)
    bhld = layout == "bhld"
    q_turned = _rotated(q, cos, sin, positions, interleaved, bhld)
    k_turned = _rotated(k, cos, sin, positions, interleaved, bhld)
    append_kv(k_turned, v, k_cache, v_cache, slot_mapping, layout, op)
    return q_turned if out is None else out.copy_(q_turned)
