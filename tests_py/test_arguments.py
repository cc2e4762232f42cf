"""What is told about arguments that are no arrays: keywords, numbers, names; and what comes through unchanged."""

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest

import dlattn
from dlattn import _core, _signature
from on_device import OPERATIONS


def ones(*shape):
    return np.ones(shape, np.float32)


Q, K, TABLE = ones(1, 3, 4, 8), ones(1, 5, 2, 8), ones(9, 4)


# ---- signatures


def stub_functions():
    tree = ast.parse((Path(dlattn.__file__).parent / "_core.pyi").read_text())
    return {node.name: node.args for node in tree.body if isinstance(node, ast.FunctionDef)}


def stub_parameters(arguments):
    """(name, kind, default) of each parameter, as inspect has them."""
    empty = inspect.Parameter.empty
    names = [a.arg for a in arguments.args]
    defaults = [empty] * (len(names) - len(arguments.defaults)) + [ast.literal_eval(d) for d in arguments.defaults]
    found = [(n, inspect.Parameter.POSITIONAL_OR_KEYWORD, d) for n, d in zip(names, defaults, strict=True)]
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        value = empty if default is None else ast.literal_eval(default)
        found.append((argument.arg, inspect.Parameter.KEYWORD_ONLY, value))
    return found


def test_the_stub_has_every_function():
    things = {n: x for n, x in vars(_core).items() if callable(x) and not n.startswith("__")}
    public = {n for n, x in things.items() if not isinstance(x, type)}
    assert set(stub_functions()) == public
    assert {n for n in things if n not in public} == {"_JaxResult"}
    assert set(OPERATIONS) < public


@pytest.mark.parametrize("name", [*OPERATIONS, "info", "set_num_threads", "get_num_threads"])
def test_the_stub_has_the_signatures_of_the_module(name):
    arguments = stub_functions()[name]
    assert [arguments.posonlyargs, arguments.vararg, arguments.kwarg] == [[], None, None]
    real = _signature.signature(name).parameters.values()
    assert stub_parameters(arguments) == [(p.name, p.kind, p.default) for p in real]


@pytest.mark.parametrize("name", [*OPERATIONS, "set_num_threads"])
def test_a_type_error_names_the_function_and_the_keyword(name):
    function, parameters = getattr(dlattn, name), _signature.signature(name).parameters.values()
    needed = [p.name for p in parameters if p.default is inspect.Parameter.empty]
    complete = dict.fromkeys(needed)
    with pytest.raises(TypeError, match=rf"^{name}: .*unexpected keyword argument 'causal'"):
        function(**complete, causal=True)
    for missing in needed:
        with pytest.raises(TypeError, match=rf"^{name}: missing .*'{missing}'"):
            function(**{n: None for n in needed if n != missing})
    positional = [p for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    with pytest.raises(TypeError, match=rf"^{name}: too many positional"):
        function(*[None] * (len(positional) + 1), **{n: None for n in needed if n == "interleaved"})
    with pytest.raises(TypeError, match=rf"^{name}: multiple values for argument '{positional[0].name}'"):
        function(None, **complete)


# ---- numbers


class Stopped:
    """A number whose conversion is interrupted."""

    def __float__(self):
        raise KeyboardInterrupt

    __index__ = __float__


class Failing:
    def __float__(self):
        raise OSError("no number today")

    __index__ = __float__


@pytest.mark.parametrize(("option", "wrap"), [("scale", 0), ("softcap", 0), ("window", 2)])
def test_interrupts_come_through_and_errors_do_not(option, wrap):
    with pytest.raises(KeyboardInterrupt):
        dlattn.attention(Q, K, K, **{option: (Stopped(), 1) if wrap else Stopped()})
    with pytest.raises(ValueError, match=f"attention: {option} is"):
        dlattn.attention(Q, K, K, **{option: (Failing(), 1) if wrap else Failing()})


def test_an_interrupt_in_repr_comes_through():
    class Odd:
        def __repr__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dlattn.attention(Q, K, K, layout=Odd())


def test_number_of_threads():
    before = dlattn.get_num_threads()
    try:
        for n in (1, np.int64(2), np.uint8(3)):
            dlattn.set_num_threads(n)
            assert dlattn.get_num_threads() == n
    finally:
        dlattn.set_num_threads(before)
    for n in (0, -1, 4097, 10**30, True, 2.0, "2", None):
        with pytest.raises(ValueError, match=r"set_num_threads: n is .*, expected an int in 1\.\.4096"):
            dlattn.set_num_threads(n)
    with pytest.raises(KeyboardInterrupt):
        dlattn.set_num_threads(Stopped())
    assert dlattn.get_num_threads() == before


# ---- words


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: dlattn.attention(1, K, K), "attention: q is an int, expected an array"),
        (lambda: dlattn.attention(Q, "k", K), "attention: k is a str, expected an array"),
        (lambda: dlattn.attention(Q, K, K, out=[]), "attention: out is a list, expected one array"),
        (lambda: dlattn.apply_rotary_emb(Q, None), "apply_rotary_emb: freqs is None, expected (cos, sin)"),
        (lambda: dlattn.apply_rotary_emb(Q, 3), "apply_rotary_emb: freqs is an int, expected (cos, sin)"),
        (
            lambda: dlattn.rotary_embedding(Q, None, TABLE, TABLE, interleaved=True, out=Q),
            "rotary_embedding: out is a numpy.ndarray, expected (q_out, k_out)",
        ),
        (
            lambda: dlattn.merge_attention_states([Q], [ones(1, 4, 3)], out=object()),
            "merge_attention_states: out is an object, expected (out, lse)",
        ),
    ],
)
def test_grammar(call, text):
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value).startswith(text)


def test_apply_rotary_emb_speaks_of_x():
    cos = ones(3, 4)
    for x, freqs in [(ones(1, 3, 4, 7), (cos, cos)), (ones(1, 3, 4, 8), (cos[:2], cos[:2]))]:
        with pytest.raises(ValueError, match=r"^apply_rotary_emb: cos\b.*\bx\.") as caught:
            dlattn.apply_rotary_emb(x, freqs)
        assert "q." not in str(caught.value)
    with pytest.raises(ValueError, match=r"^apply_rotary_emb: cos\.batch_size is 2, expected 1 \(= x\.batch_size\)"):
        dlattn.apply_rotary_emb(ones(1, 3, 4, 8), (ones(2, 3, 4), ones(2, 3, 4)))


def test_in_place_rotary_speaks_of_q_and_k():
    q = ones(1, 3, 4, 8)
    rows = np.lib.stride_tricks.as_strided(q, strides=(0, 0, 32, 4))
    for given, text in [
        ((q, q), "q overlaps k in memory"),
        ((rows, None), r"q\.strides put two elements"),
        ((ones(1, 3, 4, 8), rows), r"k\.strides put two elements"),
    ]:
        before = q.copy()
        with pytest.raises(ValueError, match=rf"^rotary_embedding: {text}"):
            dlattn.rotary_embedding(*given, TABLE, TABLE, interleaved=True, inplace=True)
        assert np.array_equal(q, before)
    with pytest.raises(ValueError, match=r"^rotary_embedding: k_out overlaps q_out in memory"):
        dlattn.rotary_embedding(ones(1, 3, 4, 8), ones(1, 3, 4, 8), TABLE, TABLE, interleaved=True, out=(q, q))


def test_rotary_append_speaks_of_out():
    caches = [ones(2, 4, 2, 8), ones(2, 4, 2, 8)]
    q, k = ones(3, 2, 8), ones(3, 2, 8)
    for out in (caches[1][0, :3], np.lib.stride_tricks.as_strided(q.copy(), strides=(0, 32, 4))):
        with pytest.raises(ValueError, match=r"^rotary_append_kv: .*\bout\b") as caught:
            dlattn.rotary_append_kv(q, k, k, TABLE, TABLE, None, *caches, np.arange(3), interleaved=True, out=out)
        assert "q_out" not in str(caught.value)


def test_packed_tokens_have_no_layout():
    q, k, cu = ones(3, 4, 8), ones(3, 2, 8), np.array([0, 3], np.int32)
    with pytest.raises(ValueError, match=r"^attn_varlen: layout is 'bhld', expected 'blhd' \(= packed tokens are"):
        dlattn.attn_varlen(q, k, k, cu, cu, layout="bhld")
    with pytest.raises(ValueError, match="attn_varlen: layout is 'bhld'"):
        dlattn.explain("attn_varlen", q, k, k, cu, cu, layout="bhld")
    cache = ones(1, 2, 4, 8)  # of paged prefill it is the caches' layout
    table, lens = np.zeros((1, 1), np.int32), np.array([4], np.int32)
    assert dlattn.attn_paged_prefill(q, cache, cache, table, lens, cu, layout="bhld").shape == (3, 4, 8)


# ---- hostile types


class HostileMeta(type):
    def __getattr__(cls, name):
        raise cls.error

    def __init__(cls, *args):
        super().__init__(*args)


def hostile(raised):
    return HostileMeta("Hostile", (), {"error": raised})()


def test_errors_of_a_metaclass_carry_function_and_argument():
    with pytest.raises(ValueError, match=r"^attention: k \(.*Hostile\) cannot be read as an array: OSError: boom"):
        dlattn.attention(Q, hostile(OSError("boom")), K)
    with pytest.raises(KeyboardInterrupt):
        dlattn.attention(Q, hostile(KeyboardInterrupt()), K)


def test_errors_of_an_array_namespace_carry_function_and_argument():
    class Odd:
        def __init__(self, x, error):
            self.x, self.error = x, error

        def __dlpack__(self, **keywords):
            return self.x.__dlpack__(**keywords)

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()

        def __array_namespace__(self, **keywords):
            raise self.error

    with pytest.raises(ValueError, match=r"^attention: out is None.*Odd.*OSError: boom"):
        dlattn.attention(Odd(Q, OSError("boom")), K, K)
    for error in (MemoryError, KeyboardInterrupt):
        with pytest.raises(error):
            dlattn.attention(Odd(Q, error()), K, K)
