"""CUDA graphs: every operation can be captured, so it allocates nothing itself and waits for nothing, and replayed with
other contents."""

import numpy as np
import pytest

from cuda_support import close, function, quietly
from harness import rng

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
PAGES, PAGE = 64, 16


@pytest.fixture
def torch():
    return quietly("torch")


def captured(torch, call):
    """(graph, what the captured call returned)."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()  # loads what is loaded once
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


def tensors(torch, dtype, *shapes):
    r = rng("cuda graphs", str(dtype), shapes)
    return [torch.from_numpy(r.normal(size=s).astype(np.float32)).cuda().to(dtype) for s in shapes]


def ints(torch, values, dtype=np.int32):
    return torch.from_numpy(np.array(values, dtype)).cuda()


def check(torch, call, changes, exact=True):
    """Capture call(), then for each change of its inputs' contents: replaying gives what a fresh call gives."""
    graph, result = captured(torch, call)
    seen = []
    for change in changes:
        for tensor, contents in change:
            tensor.copy_(contents)
        for x in result:
            x.fill_(torch.nan)
        graph.replay()
        got = [x.clone() for x in result]
        want = call()
        for x, y in zip(got, want, strict=True):
            assert torch.isfinite(y).any()
            if exact:
                assert torch.equal(x, y)
            else:
                close(x.float().cpu().numpy(), y.float().cpu().numpy(), "float16")
        seen.append(got[0])
    assert any(not torch.equal(seen[0], x) for x in seen[1:]), "the changes change nothing"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("len_q", [1, 4])
def test_decode_with_other_lengths(torch, dtype, len_q):
    heads, dim, room = 8, 128, 4096
    q, k, v = tensors(torch, getattr(torch, dtype), (3, len_q, heads, dim), (3, room, 2, dim), (3, room, 2, dim))
    lens = ints(torch, [100, 200, 300])
    call = lambda: function("attn_decode")(q, k, v, seqlens_k=lens, is_causal=True, return_lse=True)  # noqa: E731
    lengths = [[100, 200, 300], [4096, 7, 1000], [5, 5, 5], [0, 4096, 4096], [4000, 4001, 4002]]
    check(torch, call, [[(lens, ints(torch, x)), (q, torch.randn_like(q))] for x in lengths])


def test_decode_equals_the_cpu_after_a_replay(torch):
    q, k, v = tensors(torch, torch.float32, (2, 1, 8, 64), (2, 2000, 2, 64), (2, 2000, 2, 64))
    lens = ints(torch, [10, 20])
    graph, out = captured(torch, lambda: function("attn_decode")(q, k, v, seqlens_k=lens))
    for lengths in ([10, 20], [2000, 1], [0, 1999]):
        lens.copy_(ints(torch, lengths))
        graph.replay()
        want = function("attn_decode")(*(x.cpu().numpy() for x in (q, k, v)), seqlens_k=np.array(lengths, np.int32))
        close(out.cpu().numpy(), want, "float32")


def paged(torch, dtype):
    k, v = tensors(torch, getattr(torch, dtype), (PAGES, PAGE, 2, 64), (PAGES, PAGE, 2, 64))
    table, lens = ints(torch, np.arange(64).reshape(2, 32)), ints(torch, [30, 100])
    order = rng("cuda graphs", "pages").permutation(PAGES)
    changes = [
        [(lens, ints(torch, [512, 3]))],
        [(table, ints(torch, order.reshape(2, 32)))],
        [(lens, ints(torch, [1, 512])), (table, ints(torch, order[::-1].copy().reshape(2, 32)))],
        [(lens, ints(torch, [0, 17]))],
    ]
    return k, v, table, lens, changes


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_paged_decode_with_other_lengths_and_pages(torch, dtype):
    k, v, table, lens, changes = paged(torch, dtype)
    (q,) = tensors(torch, getattr(torch, dtype), (2, 1, 8, 64))
    check(torch, lambda: function("attn_paged_decode")(q, k, v, table, lens, return_lse=True), changes)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_paged_prefill_with_other_lengths(torch, dtype):
    k, v, table, lens, changes = paged(torch, dtype)
    (q,) = tensors(torch, getattr(torch, dtype), (40, 8, 64))
    cu = ints(torch, [0, 10, 40])
    changes[:3] = [[*change, (cu, ints(torch, [0, n, 40]))] for change, n in zip(changes, (3, 40, 25), strict=False)]
    check(
        torch,
        lambda: function("attn_paged_prefill")(q, k, v, table, lens, cu, is_causal=True, return_lse=True),
        changes,
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_prefill_with_other_contents(torch, dtype):
    q, k, v = tensors(torch, getattr(torch, dtype), (2, 300, 4, 64), (2, 300, 2, 64), (2, 300, 2, 64))
    check(
        torch,
        lambda: function("attn_prefill")(q, k, v, is_causal=True, return_lse=True),
        [[(q, torch.randn_like(q))], [(k, torch.randn_like(k)), (v, torch.randn_like(v))]],
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_varlen_with_other_lengths(torch, dtype):
    q, k, v = tensors(torch, getattr(torch, dtype), (300, 4, 64), (500, 2, 64), (500, 2, 64))
    cu_q, cu_k = ints(torch, [0, 100, 300]), ints(torch, [0, 250, 500])
    lengths = [([0, 100, 300], [0, 250, 500]), ([0, 1, 300], [0, 1, 500]), ([0, 299, 300], [0, 300, 500])]
    check(
        torch,
        lambda: function("attn_varlen")(q, k, v, cu_q, cu_k, is_causal=True, return_lse=True),
        [[(cu_q, ints(torch, a)), (cu_k, ints(torch, b))] for a, b in lengths],
    )


def test_rotary_with_other_positions(torch):
    q, k, cos, sin = tensors(torch, torch.float32, (2, 5, 4, 64), (2, 5, 2, 64), (100, 32), (100, 32))
    positions = ints(torch, np.arange(10).reshape(2, 5))
    changes = [[(positions, ints(torch, np.arange(10).reshape(2, 5) * i))] for i in (1, 5, 9)]
    check(
        torch,
        lambda: function("rotary_embedding")(q, k, cos, sin, positions=positions, interleaved=False),
        changes,
    )


def test_append_with_other_slots(torch):
    k, v, k_cache, v_cache = tensors(torch, torch.float16, (3, 2, 64), (3, 2, 64), (4, 8, 2, 64), (4, 8, 2, 64))
    slots = ints(torch, [0, 1, 2])
    graph, _ = captured(torch, lambda: function("append_kv")(k, v, k_cache, v_cache, slots))
    for change in ([31, -1, 5], [8, 9, 7], [-1, -1, 0]):
        k_cache.zero_()
        v_cache.fill_(7)
        slots.copy_(ints(torch, change))
        graph.replay()
        flat_k, flat_v = k_cache.flatten(0, 1), v_cache.flatten(0, 1)
        for t, slot in enumerate(change):
            if slot >= 0:
                assert torch.equal(flat_k[slot], k[t])
                assert torch.equal(flat_v[slot], v[t])
        assert int((flat_k != 0).any(-1).any(-1).sum()) == sum(slot >= 0 for slot in change)


def test_rotary_append_with_other_positions_and_slots(torch):
    q, k, v, cos, sin = tensors(torch, torch.float32, (3, 4, 64), (3, 2, 64), (3, 2, 64), (50, 32), (50, 32))
    k_cache, v_cache = tensors(torch, torch.float32, (4, 8, 2, 64), (4, 8, 2, 64))
    slots, positions = ints(torch, [0, 1, 2]), ints(torch, [0, 1, 2])

    def call():
        q_out = function("rotary_append_kv")(q, k, v, cos, sin, positions, k_cache, v_cache, slots, interleaved=True)
        return q_out, k_cache + 0, v_cache + 0

    changes = [
        [(slots, ints(torch, s)), (positions, ints(torch, p))]
        for s, p in (([0, 1, 2], [0, 1, 2]), ([31, -1, 7], [49, 3, 3]), ([5, 4, 3], [10, 20, 30]))
    ]
    check(torch, call, changes)


def test_merge_with_other_states(torch):
    outs = tensors(torch, torch.float16, *[(2, 3, 4, 64)] * 3)
    lses = tensors(torch, torch.float32, *[(2, 4, 3)] * 3)
    empty = torch.full_like(lses[0], -torch.inf)
    changes = [[(lses[0], lses[1] + 1)], [(lses[2], empty)], [(x, empty) for x in lses[1:]]]
    check(torch, lambda: function("merge_attention_states")(outs, lses), changes)


def test_a_decode_step_in_one_graph(torch):
    """Rotation, append and attention, then three more tokens by replays."""
    heads, dim = 4, 64
    q, k, v = tensors(torch, torch.float32, (1, heads, dim), (1, 2, dim), (1, 2, dim))
    cos, sin = tensors(torch, torch.float32, (64, 32), (64, 32))
    k_cache, v_cache = torch.full((4, 16, 2, dim), torch.nan).cuda(), torch.full((4, 16, 2, dim), torch.nan).cuda()
    table, lens = ints(torch, [[2, 0, 3]]), ints(torch, [1])
    position, slot = ints(torch, [0]), ints(torch, [32])

    def step():
        turned = function("rotary_append_kv")(q, k, v, cos, sin, position, k_cache, v_cache, slot, interleaved=False)
        return function("attn_paged_decode")(turned[None], k_cache, v_cache, table, lens)

    def turned_on_cpu(x, t):
        rows = (c[t : t + 1].cpu().numpy() for c in (cos, sin))
        return function("rotary_embedding")(x.cpu().numpy(), None, *rows, interleaved=False)[0]

    graph, out = captured(torch, step)
    keys, values = [], []
    for t in range(20):
        for x in (q, k, v):
            x.copy_(torch.randn_like(x))
        position.fill_(t)
        lens.fill_(t + 1)
        slot.fill_([2, 0, 3][t // 16] * 16 + t % 16)
        graph.replay()
        keys.append(turned_on_cpu(k, t))
        values.append(v.cpu().numpy().copy())
        want = function("attention")(turned_on_cpu(q, t)[None], *(np.concatenate(x)[None] for x in (keys, values)))
        close(out.cpu().numpy(), want, "float32")


def test_a_graph_of_cupy(torch):
    cupy = quietly("cupy")
    r = rng("cuda graphs", "cupy")
    x, cos, sin = (cupy.asarray(r.normal(size=s).astype(np.float32)) for s in [(2, 5, 4, 64), (9, 32), (9, 32)])
    positions = cupy.asarray(np.zeros((2, 5), np.int32))
    out = cupy.empty_like(x)
    call = lambda: function("rotary_embedding")(  # noqa: E731
        x, None, cos, sin, positions=positions, interleaved=True, out=(out, None)
    )
    call()
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        stream.begin_capture()
        call()
        graph = stream.end_capture()
        for shift in (0, 4):
            positions[...] = cupy.arange(5, dtype=np.int32) + shift
            out[...] = 0
            graph.launch()
            got = cupy.asnumpy(out)
            numpy = [cupy.asnumpy(a) for a in (x, cos, sin)]
            want, _ = function("rotary_embedding")(
                numpy[0], None, numpy[1][shift : shift + 5], numpy[2][shift : shift + 5], interleaved=True
            )
            close(got, want, "float32")
