"""Short forms of calls for tests with numbers known beforehand: float values in, float64 values out, in any dtype."""

import numpy as np

import dlattn
from harness import F32, Placed


def attend(dt, q, k, v, *tail, function=dlattn.attention, **options):
    """(out, lse) in float64; q, k, v are values (rounded to dt here) or Placed tensors."""
    q, k, v = (x if isinstance(x, Placed) else Placed(np.shape(x), dt, values=x) for x in (q, k, v))
    shape = q.array.shape[:-1] + v.array.shape[-1:]
    if len(shape) == 3:
        lse_shape = (shape[1], shape[0])
    else:
        heads, rows = (shape[1], shape[2]) if options.get("layout") == "bhld" else (shape[2], shape[1])
        lse_shape = (shape[0], heads, rows)
    out, lse = Placed(shape, dt), Placed(lse_shape, F32)
    function(q.give(), k.give(), v.give(), *tail, out=(out.give(), lse.array), return_lse=True, **options)
    assert out.intact()
    assert lse.intact()
    return out.values(), lse.array.astype(np.float64)


def ramp(length, heads=1, dim=1, first=0.0, batch=1, step=1.0):
    """v[b, j, h, :] = first + j."""
    rows = (first + step * np.arange(length))[None, :, None, None]
    return np.broadcast_to(rows, (batch, length, heads, dim)).copy()


def paged(keys, page_size, pages=None, fill=np.nan):
    """(cache [pages, page_size, heads, dim], table [1, pages]) holding keys [len, heads, dim] in reverse page order."""
    used = -(-len(keys) // page_size)
    pages = used + 1 if pages is None else pages
    cache = np.full((pages, page_size, *keys.shape[1:]), fill)
    table = np.arange(used - 1, -1, -1, dtype=np.int32)[None]
    for i in range(used):
        part = keys[i * page_size : (i + 1) * page_size]
        cache[table[0, i], : len(part)] = part
    return cache, table
