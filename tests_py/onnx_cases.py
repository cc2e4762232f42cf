"""The node tests of ONNX's Attention and RotaryEmbedding operators, made by onnx's generators, put into dlattn's terms.

The generators (onnx.backend.test.case.node) draw inputs from numpy's global generator, which onnx seeds with 0 for each
of them, and compute the expected outputs with onnx's own code: both are what `backend-test-tools generate-data` writes.
Neither is ours; ours is only the translation below.

Where ONNX means something else than dlattn by the same words:
  * is_causal and windows are measured from an offset: the length of past_key, nonpad_kv_seqlen - q_len, or else 0,
    which is top-left when q_len and kv_len differ. dlattn is always bottom-right; another offset becomes a bool mask.
  * masks align to the right: rank 2 is [q_len, kv_len], rank 3 [heads, q_len, kv_len]; a short one hides the rest.
  * float16 and bfloat16 are computed in that type throughout, so a result in float32 differs by a few roundings.
  * qk_matmul_output is an output that dlattn does not have; present_key and present_value are concatenations.
"""

import importlib
from dataclasses import dataclass, field

import numpy as np

ATTENTION_INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
ROTARY_INPUTS = ("X", "cos_cache", "sin_cache", "position_ids")


@dataclass
class AttentionCase:
    name: str
    kind: str  # "direct", "converted" (position options rewritten as a bool mask), "bias" (float mask)
    q: np.ndarray  # [batch, heads, len, dim], as ONNX has it
    k: np.ndarray
    v: np.ndarray
    out: np.ndarray
    options: dict = field(default_factory=dict)


@dataclass
class RotaryCase:
    name: str
    x: np.ndarray  # [batch, heads, len, dim]
    cos: np.ndarray
    sin: np.ndarray
    positions: object
    interleaved: bool
    out: np.ndarray


def node_cases():
    """(name, op, attributes, inputs by slot, first output) of every single-node case of the two operators."""
    import onnx
    from onnx.backend.test.case import node as package

    for module in ("attention", "rotaryembedding"):  # importing one runs its generators
        importlib.import_module(f"{package.__name__}.{module}")
    for case in package._NodeTestCases:
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type not in ("Attention", "RotaryEmbedding") or "_expanded" in case.name:
            continue
        node = nodes[0]
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        inputs, outputs = case.data_sets[0]
        slots = ATTENTION_INPUTS if node.op_type == "Attention" else ROTARY_INPUTS
        filled = iter(inputs)
        by_slot = {slot: np.asarray(next(filled)) for slot, name in zip(slots, node.input, strict=False) if name}
        yield case.name, node.op_type, attributes, by_slot, np.asarray(outputs[0])


def split_heads(x, heads):
    """[batch, len, heads * dim] -> [batch, heads, len, dim]."""
    if x.ndim == 4:
        return x
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)


def positional_mask(offset, len_q, len_k, is_causal, left, right):
    """bool [batch, len_q, len_k] of what causality and window allow around key i + offset."""
    centre = np.arange(len_q)[None, :, None] + offset[:, None, None]
    key = np.arange(len_k)[None, None, :]
    allow = np.ones((len(offset), len_q, len_k), bool)
    if is_causal:
        allow &= key <= centre
    if left >= 0:
        allow &= key >= centre - left
    if right >= 0:
        allow &= key <= centre + right
    return allow


def attention_case(name, attributes, inputs, out):
    heads, kv_heads = attributes.get("q_num_heads"), attributes.get("kv_num_heads")
    q, out = split_heads(inputs["Q"], heads), split_heads(out, heads)
    k, v = split_heads(inputs["K"], kv_heads), split_heads(inputs["V"], kv_heads)
    past = 0
    if "past_key" in inputs:
        past = inputs["past_key"].shape[2]
        k = np.concatenate([inputs["past_key"], k], axis=2)
        v = np.concatenate([inputs["past_value"], v], axis=2)
    batch, _, len_q, _ = q.shape
    len_k = k.shape[2]
    options = {"layout": "bhld"}
    if attributes.get("scale"):
        options["scale"] = float(attributes["scale"])
    if attributes.get("softcap"):
        options["softcap"] = float(attributes["softcap"])
    lens = np.full(batch, len_k)
    offset = np.full(batch, past)
    if "nonpad_kv_seqlen" in inputs:
        lens = inputs["nonpad_kv_seqlen"].reshape(-1).astype(np.int64)
        offset = lens - len_q
        options["seqlens_k"] = lens
    kind, mask = "direct", None
    if "attn_mask" in inputs:
        mask = inputs["attn_mask"]
        if mask.shape[-1] < len_k:
            hide = False if mask.dtype == np.bool_ else -np.inf
            mask = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, len_k - mask.shape[-1])], constant_values=hide)
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        mask = np.broadcast_to(mask, (*mask.shape[:2], len_q, len_k))
        kind = "direct" if mask.dtype == np.bool_ else "bias"
    is_causal = bool(attributes.get("is_causal", 0))
    left, right = int(attributes.get("left_window_size", -1)), int(attributes.get("right_window_size", -1))
    if is_causal or left >= 0 or right >= 0:
        if (offset == lens - len_q).all():
            options["is_causal"], options["window"] = is_causal, (left, right)
        else:
            allow = positional_mask(offset, len_q, len_k, is_causal, left, right)[:, None]
            if mask is None or mask.dtype == np.bool_:
                mask = allow if mask is None else mask & allow
                kind = "converted"
            else:
                mask = np.where(allow, mask, np.array(-np.inf, mask.dtype))
    if mask is not None:
        options["mask"] = mask
    return AttentionCase(name, kind, q, k, v, out, options)


def rotary_case(name, attributes, inputs, out):
    heads = attributes.get("num_heads")
    x, out = split_heads(inputs["X"], heads), split_heads(out, heads)
    return RotaryCase(
        name,
        x,
        inputs["cos_cache"],
        inputs["sin_cache"],
        inputs.get("position_ids"),
        bool(attributes.get("interleaved", 0)),
        out,
    )


def load():
    """(attention cases, rotary cases)."""
    attention, rotary = [], []
    for name, op, attributes, inputs, out in node_cases():
        if op == "Attention":
            attention.append(attention_case(name, attributes, inputs, out))
        else:
            rotary.append(rotary_case(name, attributes, inputs, out))
    return attention, rotary
