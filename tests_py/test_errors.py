"""Every argument of every function, wrong in every way: the message names both, and nothing is written."""

import re

import numpy as np
import pytest

import device_array
import dlattn

F, INDEX, M, OUT, LSE = "float", "index", "mask", "out", "lse"
CANARY = -77.0


def canary(*shape):
    return np.full(shape, CANARY, np.float32)


def ones(*shape):
    return np.ones(shape, np.float32)


def int32(*values):
    return np.array(values, np.int32)


COMMON = {"mask": M, "sinks": F, "alibi_slopes": F, "out": OUT, "lse": LSE}


def common(batch, len_q, len_k):
    return {
        "mask": np.ones((batch, len_q, len_k), bool),
        "sinks": ones(4),
        "alibi_slopes": ones(batch, 4),
        "return_lse": True,
    }


def dense():
    return {
        "q": ones(2, 3, 4, 8),
        "k": ones(2, 5, 2, 8),
        "v": ones(2, 5, 2, 6),
        "seqlens_k": int32(5, 2),
        **common(2, 3, 5),
        "out": canary(2, 3, 4, 6),
        "lse": canary(2, 4, 3),
    }


def varlen():
    return {
        "q": ones(7, 4, 8),
        "k": ones(9, 2, 8),
        "v": ones(9, 2, 6),
        "cu_seqlens_q": int32(0, 3, 7),
        "cu_seqlens_k": int32(0, 5, 9),
        **common(2, 4, 5),
        "out": canary(7, 4, 6),
        "lse": canary(4, 7),
    }


def paged(decode):
    base = {
        "q": ones(2, 3, 4, 8) if decode else ones(6, 4, 8),
        "k_cache": ones(5, 4, 2, 8),
        "v_cache": ones(5, 4, 2, 6),
        "page_table": np.array([[0, 3, 4], [1, 99, 99]], np.int32),
        "seqlens_k": int32(9, 2),
    }
    if not decode:
        base["cu_seqlens_q"] = int32(0, 2, 6)
    base.update(common(2, 4, 9))
    if decode:
        return base | {"mask": np.ones((2, 3, 9), bool), "out": canary(2, 3, 4, 6), "lse": canary(2, 4, 3)}
    return base | {"out": canary(6, 4, 6), "lse": canary(4, 6)}


def rotary():
    return {
        "q": ones(2, 3, 4, 8),
        "k": ones(2, 3, 2, 8),
        "cos": ones(9, 3),
        "sin": ones(9, 3),
        "positions": np.array([[0, 8, 2], [1, 1, 1]], np.int32),
        "interleaved": True,
        "q_out": canary(2, 3, 4, 8),
        "k_out": canary(2, 3, 2, 8),
    }


def append():
    return {
        "k": ones(3, 2, 8),
        "v": ones(3, 2, 6),
        "k_cache": canary(5, 4, 2, 8),
        "v_cache": canary(5, 4, 2, 6),
        "slot_mapping": int32(7, -1, 0),
    }


def rotary_append():
    return {
        "q": ones(3, 4, 8),
        "k": ones(3, 2, 8),
        "v": ones(3, 2, 6),
        "cos": ones(9, 3),
        "sin": ones(9, 3),
        "positions": int32(0, 8, 2),
        "k_cache": canary(5, 4, 2, 8),
        "v_cache": canary(5, 4, 2, 6),
        "slot_mapping": int32(7, -1, 0),
        "interleaved": True,
        "out": canary(3, 4, 8),
    }


def merge():
    return {
        "outs": [ones(2, 3, 4, 6), ones(2, 3, 4, 6)],
        "lses": [ones(2, 4, 3), ones(2, 4, 3)],
        "out": canary(2, 3, 4, 6),
        "lse": canary(2, 4, 3),
    }


QKV = {"q": F, "k": F, "v": F}
CACHES = {"k_cache": F, "v_cache": F}
FUNCTIONS = {
    "attention": (dense, QKV | {"seqlens_k": INDEX} | COMMON),
    "attn_prefill": (dense, QKV | {"seqlens_k": INDEX} | COMMON),
    "attn_decode": (dense, QKV | {"seqlens_k": INDEX} | COMMON),
    "attn_varlen": (varlen, QKV | {"cu_seqlens_q": INDEX, "cu_seqlens_k": INDEX} | COMMON),
    "attn_paged_decode": (lambda: paged(True), {"q": F} | CACHES | {"page_table": INDEX, "seqlens_k": INDEX} | COMMON),
    "attn_paged_prefill": (
        lambda: paged(False),
        {"q": F} | CACHES | {"page_table": INDEX, "seqlens_k": INDEX, "cu_seqlens_q": INDEX} | COMMON,
    ),
    "rotary_embedding": (rotary, {"q": F, "k": F, "cos": F, "sin": F, "positions": INDEX, "q_out": OUT, "k_out": OUT}),
    "append_kv": (append, {"k": F, "v": F, "k_cache": OUT, "v_cache": OUT, "slot_mapping": INDEX}),
    "rotary_append_kv": (
        rotary_append,
        {
            "q": F,
            "k": F,
            "v": F,
            "cos": F,
            "sin": F,
            "positions": INDEX,
            "k_cache": OUT,
            "v_cache": OUT,
            "slot_mapping": INDEX,
            "out": OUT,
        },
    ),
}
OPTIONAL = {"seqlens_k", "mask", "sinks", "alibi_slopes", "positions", "out", "lse", "q_out", "k_out"}
# What is told about an argument whose size others follow, by the names of the others.
FOLLOWERS = {
    "q": "q|k|k_cache|out|cu_seqlens_q|mask|v|positions|slot_mapping|page_table",
    "k": "k|v|k_cache|k_out|mask",
    "v": "v|out|v_cache",
    "k_cache": "k_cache|v_cache",
    "cos": "cos|sin",
    "outs": "outs|lses|out",
    "cu_seqlens_q": "cu_seqlens_q|cu_seqlens_k|page_table|mask",
    "v_cache": "v_cache|out",
}


def call(name, arguments):
    arguments = dict(arguments)
    if "lse" in arguments:
        arguments["out"] = (arguments.pop("out"), arguments.pop("lse"))
    if "q_out" in arguments:
        arguments["out"] = (arguments.pop("q_out"), arguments.pop("k_out"))
    return getattr(dlattn, name)(**arguments)


def refuse(name, arguments, named, error=ValueError, contains=None):
    """The call raises `error` with "<function>: ... <argument> ..." and no canary is touched; returns the message."""
    watched = [
        x for x in arguments.values() if isinstance(x, np.ndarray) and x.dtype == np.float32 and (x == CANARY).all()
    ]
    copies = [x.copy() for x in watched]
    with pytest.raises(error) as caught:
        call(name, arguments)
    text = str(caught.value)
    assert text.startswith(f"{name}: "), text
    assert re.search(rf"\b({named})(\b|_left|_right)", text), f"{text!r} does not name {named}"
    if contains:
        assert re.search(contains, text), f"{text!r} lacks {contains}"
    assert all(np.array_equal(x, c) for x, c in zip(watched, copies, strict=True)), "written before the error"
    return text


def widen(x):
    """The same values with a last stride of 2."""
    return np.repeat(x, 2, axis=-1)[..., ::2]


def unaligned(x):
    raw = np.empty(x.nbytes + x.itemsize, np.uint8)
    for shift in range(1, x.itemsize + 1):
        if (raw.ctypes.data + shift) % x.itemsize:
            return raw[shift : shift + x.nbytes].view(x.dtype).reshape(x.shape)
    raise AssertionError


ARGUMENTS = [(name, argument) for name, (_, arguments) in FUNCTIONS.items() for argument in arguments]
arguments = pytest.mark.parametrize(("name", "argument"), ARGUMENTS, ids=[f"{n}-{a}" for n, a in ARGUMENTS])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_base_calls_are_legal(name):
    arguments = FUNCTIONS[name][0]()
    call(name, arguments)
    written = [x for k, x in arguments.items() if FUNCTIONS[name][1].get(k) in (OUT, LSE)]
    assert written
    assert not any((x == CANARY).all() for x in written)


@arguments
def test_wrong_rank(name, argument):
    make, _ = FUNCTIONS[name]
    for change in (
        lambda x: x[None],
        lambda x: x[0],
        lambda x: x[None, None, None],
        lambda x: x.ravel()[0].reshape(()),
    ):
        base = make()
        old = base[argument]
        base[argument] = new = np.ascontiguousarray(change(old)).reshape(np.shape(change(old)))
        legal = {"mask": (2, 4), "alibi_slopes": (1, 2), "positions": (1, 2), "slot_mapping": (1, 2)}
        if new.ndim in legal.get(
            argument, ()
        ):  # another form that is documented; its sizes are not what this test is about
            continue
        refuse(
            name, base, FOLLOWERS.get(argument, argument) if argument == "q" else argument, contains=r"\bndim\b|axes|\d"
        )


@arguments
def test_wrong_dtype(name, argument):
    make, kinds = FUNCTIONS[name]
    wrong = {
        F: [np.float64, np.int32],
        INDEX: [np.int16, np.uint32, np.float32, np.uint64],
        M: [np.int32, np.float64, np.uint8],
        OUT: [np.float64, np.float16],
        LSE: [np.float64, np.float16],
    }[kinds[argument]]
    for dtype in wrong:
        base = make()
        base[argument] = base[argument].astype(dtype)
        text = refuse(name, base, argument, contains="dtype")
        assert np.dtype(dtype).name in text


@arguments
def test_other_float_dtype(name, argument):
    """q, k, v, out agree; nothing is converted."""
    if argument not in ("q", "k", "v", "k_cache", "v_cache", "out", "q_out", "k_out"):
        return
    base = FUNCTIONS[name][0]()
    base[argument] = base[argument].astype(np.float16)
    refuse(
        name,
        base,
        FOLLOWERS.get(argument, argument) if argument == "q" or (argument, name) == ("k", "append_kv") else argument,
        contains="float16",
    )


@arguments
def test_wrong_sizes(name, argument):
    make, kinds = FUNCTIONS[name]
    for axis in range(make()[argument].ndim):
        for delta in (1, -1):
            base = make()
            x = base[argument]
            shape = list(x.shape)
            shape[axis] += delta
            if legal_size(name, argument, axis, shape):
                continue
            new = np.zeros(shape, x.dtype) if kinds[argument] != OUT and kinds[argument] != LSE else canary(*shape)
            base[argument] = new
            refuse(name, base, FOLLOWERS.get(argument, argument), contains=r"\d")


def legal_size(name, argument, axis, shape):
    """Sizes that nothing else fixes: rows of tables, pages, packed tokens that no sequence owns."""
    if argument in ("cos", "sin"):
        return False if axis == 1 or argument == "sin" else "cos"  # sin follows cos
    if "paged" in name and argument == "page_table":
        return axis == 1  # fewer pages than the lengths say is an error of seqlens_k
    if argument == "mask" and (name == "attn_varlen" or "paged" in name):
        needed = {1: 3 if name == "attn_paged_decode" else 4, 2: 5 if name == "attn_varlen" else 9}
        return shape[0] == 1 if axis == 0 else shape[axis] > needed[axis]
    if argument == "mask":
        return axis == 0 and shape[0] == 1
    return False


@arguments
def test_last_axis_that_is_not_contiguous(name, argument):
    make, kinds = FUNCTIONS[name]
    if kinds[argument] == M:
        call(name, make() | {argument: widen(make()[argument])})  # a mask may have any strides
        return
    if argument in ("positions", "slot_mapping"):
        return  # any strides too
    base = make()
    base[argument] = widen(base[argument])
    refuse(name, base, argument, contains="stride|contiguous")


@arguments
def test_memory_that_is_not_aligned(name, argument):
    make, kinds = FUNCTIONS[name]
    if kinds[argument] == M:
        return
    base = make()
    base[argument] = unaligned(base[argument])
    base[argument][...] = make()[argument]
    refuse(name, base, argument)


@arguments
def test_things_that_are_no_arrays(name, argument):
    make, _ = FUNCTIONS[name]
    for thing in ([[1.0]], "text", 3, object(), 2.5j):
        refuse(name, make() | {argument: thing}, argument, error=(TypeError, ValueError))
    if argument not in OPTIONAL and not (name == "rotary_embedding" and argument == "k"):
        refuse(name, make() | {argument: None}, argument, error=(TypeError, ValueError))


@arguments
def test_another_device(name, argument):
    if argument in ("q",) or (name == "append_kv" and argument == "k"):
        return  # it says where the call runs: test_importer.py
    base = FUNCTIONS[name][0]()
    base[argument] = device_array.DeviceArray(base[argument], device=(device_array.CUDA, 2))
    if dlattn.info()["cuda_compiled"]:
        pytest.skip("built with CUDA: a made-up device may not be touched")
    refuse(name, base, argument, error=(ValueError, RuntimeError), contains="(?i)cuda")


@arguments
def test_read_only_outputs(name, argument):
    make, kinds = FUNCTIONS[name]
    base = make()
    base[argument].flags.writeable = False
    if kinds[argument] in (OUT, LSE):
        refuse(name, base, argument, contains="read-only")
    else:
        call(name, base)


@arguments
def test_outputs_that_overlap(name, argument):
    make, kinds = FUNCTIONS[name]
    if kinds[argument] not in (OUT, LSE):
        return
    base = make()
    x = base[argument]
    base[argument] = np.lib.stride_tricks.as_strided(x, strides=(0, *x.strides[1:]))  # rows on top of each other
    refuse(name, base, argument)
    for other, kind in FUNCTIONS[name][1].items():
        if other == argument or (
            (argument, other) in (("q_out", "q"), ("k_out", "k"), ("out", "q")) and "rotary" in name
        ):
            continue
        base = make()
        source = base[other]
        if x.nbytes < source.nbytes:  # the output inside the other's memory
            new = source.view(np.uint8).reshape(-1)[: x.nbytes].view(x.dtype).reshape(x.shape)
            if new.strides == source.strides and name.startswith("rotary"):
                continue
            before = source.tobytes()
            refuse(name, base | {argument: new}, f"{argument}|{other}", contains="overlap")
            assert source.tobytes() == before
        elif kind != M:  # the other inside the output's memory
            flat = x.view(np.uint8).reshape(-1)[: source.nbytes]
            flat[...] = np.ascontiguousarray(source).view(np.uint8).reshape(-1)
            new = flat.view(source.dtype).reshape(source.shape)
            before = x.tobytes()
            refuse(name, base | {other: new, argument: x}, f"{argument}|{other}", contains="overlap")
            assert x.tobytes() == before
            x[...] = CANARY


VALUES = [
    ("seqlens_k", int32(6, 2), ("attention", "attn_prefill", "attn_decode")),
    (
        "seqlens_k",
        int32(5, -1),
        ("attention", "attn_prefill", "attn_decode", "attn_paged_decode", "attn_paged_prefill"),
    ),
    ("seqlens_k", int32(13, 1), ("attn_paged_decode", "attn_paged_prefill")),
    ("seqlens_k", np.array([2**40, 1], np.int64), ("attention", "attn_paged_decode", "attn_paged_prefill")),
    ("cu_seqlens_q", int32(0, 5, 3), ("attn_varlen", "attn_paged_prefill")),
    ("cu_seqlens_q", int32(-1, 3, 6), ("attn_varlen", "attn_paged_prefill")),
    ("cu_seqlens_q", int32(0, 3, 8), ("attn_varlen", "attn_paged_prefill")),
    ("cu_seqlens_k", int32(0, 9, 5), ("attn_varlen",)),
    ("cu_seqlens_k", int32(-2, 5, 9), ("attn_varlen",)),
    ("cu_seqlens_k", int32(0, 5, 10), ("attn_varlen",)),
    ("page_table", np.array([[0, 5, 4], [1, 0, 0]], np.int32), ("attn_paged_decode", "attn_paged_prefill")),
    ("page_table", np.array([[0, 3, -1], [1, 0, 0]], np.int64), ("attn_paged_decode", "attn_paged_prefill")),
    ("page_table", np.array([[0, 3, 2**32], [1, 0, 0]], np.int64), ("attn_paged_decode", "attn_paged_prefill")),
    ("slot_mapping", int32(7, 20, 0), ("append_kv", "rotary_append_kv")),
    ("slot_mapping", int32(7, -2, 0), ("append_kv", "rotary_append_kv")),
    ("slot_mapping", int32(7, 3, 7), ("append_kv", "rotary_append_kv")),
    ("slot_mapping", np.array([7, 2**32, 0], np.int64), ("append_kv", "rotary_append_kv")),
    ("positions", int32(0, 9, 2), ("rotary_append_kv",)),
    ("positions", int32(0, -1, 2), ("rotary_append_kv",)),
    ("positions", np.array([[0, 9, 2], [1, 1, 1]], np.int32), ("rotary_embedding",)),
    ("positions", np.array([[0, 3, 2], [1, -1, 1]], np.int64), ("rotary_embedding",)),
]
ATTENTION = [n for n in FUNCTIONS if n.startswith("att")]
VALUES += [
    (a, v, tuple(ATTENTION))
    for a, v in [
        ("scale", np.nan),
        ("scale", np.inf),
        ("softcap", -1.0),
        ("softcap", np.nan),
        ("softcap", np.inf),
        ("window", (-2, 0)),
        ("window", (0, -2)),
        ("layout", "lbhd"),
        ("layout", ""),
    ]
]
VALUES += [("layout", "bshd", ("rotary_embedding", "append_kv", "rotary_append_kv"))]
CASES = [(n, a, v) for a, v, names in VALUES for n in names]


@pytest.mark.parametrize(
    ("name", "argument", "value"), CASES, ids=[f"{n}-{a}-{np.array(v).tolist()}" for n, a, v in CASES]
)
def test_wrong_values(name, argument, value):
    refuse(name, FUNCTIONS[name][0]() | {argument: value}, argument)


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("scale", "x"),
        ("window", 3),
        ("window", (1, 2, 3)),
        ("window", ("a", 1)),
        ("softcap", None),
        ("is_causal", "no"),
        ("layout", 3),
        ("return_lse", []),
        ("stream", "x"),
    ],
)
def test_options_of_a_wrong_type(name, argument, value):
    base = FUNCTIONS[name][0]()
    with pytest.raises((TypeError, ValueError)):
        call(name, base | {argument: value})
    assert (base["out"] == CANARY).all()
    assert (base["lse"] == CANARY).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_unknown_keywords_and_too_few_arguments(name):
    base = FUNCTIONS[name][0]()
    with pytest.raises(TypeError):
        call(name, base | {"causal": True})
    with pytest.raises(TypeError):
        getattr(dlattn, name)(base[next(iter(base))])


def test_interleaved_must_be_given():
    base = rotary()
    del base["interleaved"]
    with pytest.raises(TypeError):
        call("rotary_embedding", base)
    base = rotary_append()
    del base["interleaved"]
    with pytest.raises(TypeError):
        call("rotary_append_kv", base)
