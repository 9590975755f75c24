#!/usr/bin/env python3
"""Turn a llama-architecture GGUF file into a Hugging Face style model directory.

    gguf_to_hf.py IN.gguf OUT_DIR [--dtype bf16|f16|f32]

Needs numpy and nothing else: the container, the block formats, the row
permutation and the safetensors writer are spelled out here.

Facts used
  GGUF v3, little endian: "GGUF", u32 version, u64 tensors, u64 pairs; each pair is
  a string key, a u32 type and a value; each tensor is a string name, u32 ndims,
  u64 dims[], u32 type, u64 offset; then padding to general.alignment (32 if
  absent) and the data, offsets counting from there.  A string is u64 length and
  bytes; an array is u32 element type, u64 count and the elements.
  Q8_0  block = 34 bytes: fp16 d; int8 q[32]           x[i] = d*q[i]
  Q4_1  block = 20 bytes: fp16 d; fp16 m; u8 qs[16]    x[i]    = d*(qs[i] & 15) + m   (i = 0..15)
                                                       x[i+16] = d*(qs[i] >> 4) + m
  A GGUF tensor lists its dimensions fastest first, so GGUF [576, 49152] is a
  row-major [49152, 576] matrix, the same layout as a HF nn.Linear weight
  [out_features, in_features].  Blocks run along the input dimension, so whole
  rows may be moved after dequantising.
  attn_q / attn_k rows were reordered for interleaved ("NORM") RoPE:
      hf[h*D + half*(D/2) + j] = gguf[h*D + 2*j + half]
      (D head size, h head, half in {0,1}, j in 0..D/2-1)
  no other tensor is changed.  No output.weight means tied embeddings.
"""
import argparse
import json
import mmap
import os
import struct
import sys
import time
from collections import namedtuple

import numpy as np

SPECIAL = 3          # GGUF token type CONTROL
USER_DEFINED = 4

SCALAR = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
KINDS = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34), 30: ("BF16", 1, 2)}
Tensor = namedtuple("Tensor", "name shape kind raw")      # shape as in GGUF: fastest dimension first


def read_gguf(path):
    """-> (dict of metadata, dict of tensors)"""
    with open(path, "rb") as f:
        m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    pos = 0

    def take(fmt):
        nonlocal pos
        v = struct.unpack_from("<" + fmt, m, pos)
        pos += struct.calcsize("<" + fmt)
        return v[0] if len(v) == 1 else v

    def string():
        nonlocal pos
        n = take("Q")
        pos += n
        return m[pos - n:pos].decode("utf-8")

    def value(kind):
        if kind == 8:
            return string()
        if kind == 9:
            sub, n = take("IQ")
            return [value(sub) for _ in range(n)]
        return take(SCALAR[kind])

    if m[:4] != b"GGUF":
        sys.exit(f"{path}: not a GGUF file")
    pos = 4
    version, n_tensors, n_pairs = take("IQQ")
    if version != 3:
        sys.exit(f"{path}: GGUF version {version} is not handled")
    kv = {}
    for _ in range(n_pairs):
        key = string()
        kv[key] = value(take("I"))
    infos = []
    for _ in range(n_tensors):
        name = string()
        dims = [take("Q") for _ in range(take("I"))]
        infos.append((name, dims, take("I"), take("Q")))
    align = kv.get("general.alignment", 32)
    base = -(-pos // align) * align
    tensors = {}
    for name, dims, kind, off in infos:
        if kind not in KINDS:
            sys.exit(f"{name}: tensor type {kind} is not handled")
        label, block, width = KINDS[kind]
        n = int(np.prod(dims)) // block * width
        tensors[name] = Tensor(name, dims, label, np.frombuffer(m, np.uint8, n, base + off))
    return kv, tensors


def dequant(t):
    """GGUF tensor -> float32 array of shape [rows, cols] (or [n])."""
    shape, raw, kind = list(reversed(t.shape)), t.raw, t.kind
    if kind == "F32":
        x = raw.view("<f4").astype(np.float32)
    elif kind == "F16":
        x = raw.view("<f2").astype(np.float32)
    elif kind == "BF16":
        x = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    elif kind == "Q8_0":
        b = raw.reshape(-1, 34)
        d = np.ascontiguousarray(b[:, :2]).view("<f2").astype(np.float32)
        q = np.ascontiguousarray(b[:, 2:]).view(np.int8).astype(np.float32)
        x = q * d
    elif kind == "Q4_1":
        b = raw.reshape(-1, 20)
        d = np.ascontiguousarray(b[:, 0:2]).view("<f2").astype(np.float32)
        m = np.ascontiguousarray(b[:, 2:4]).view("<f2").astype(np.float32)
        qs = b[:, 4:]
        q = np.concatenate([qs & 15, qs >> 4], axis=1).astype(np.float32)
        x = q * d + m
    return x.reshape(shape)


def unpermute(w, heads):
    rows, cols = w.shape
    d = rows // heads
    # [heads, D/2, 2, cols] -> [heads, 2, D/2, cols]
    return np.ascontiguousarray(
        w.reshape(heads, d // 2, 2, cols).transpose(0, 2, 1, 3).reshape(rows, cols))


def to_bf16(x):
    """Round to nearest even, as torch does.  Finite inputs only."""
    u = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    u = u + 0x7FFF + ((u >> 16) & 1)
    return (u >> 16).astype("<u2")


def encode(x, dtype):
    if dtype == "bf16":
        return to_bf16(x).tobytes()
    return x.astype("<f2" if dtype == "f16" else "<f4").tobytes()


def write_safetensors(path, names, get, dtype):
    """names: ordered list of (name, shape).  get(name) -> float32 array.
    File: u64 little-endian header size, JSON header padded with spaces to a
    multiple of 8, then the tensors back to back."""
    tag = {"bf16": "BF16", "f16": "F16", "f32": "F32"}[dtype]
    width = 4 if dtype == "f32" else 2
    head, pos = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in names:
        n = int(np.prod(shape)) * width
        head[name] = {"dtype": tag, "shape": list(shape), "data_offsets": [pos, pos + n]}
        pos += n
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, _ in names:
            f.write(encode(get(name), dtype))
    return 8 + len(text) + pos


def added_token(i, text, special=True):
    return {"id": i, "content": text, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": special}


def dump(path, obj, **kw):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(obj, f, ensure_ascii=False, **({"indent": 2} | kw))
        f.write("\n")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("gguf")
    ap.add_argument("out")
    ap.add_argument("--dtype", default="bf16", choices=["bf16", "f16", "f32"])
    a = ap.parse_args()
    t0 = time.time()
    kv, tensors = read_gguf(a.gguf)
    if kv["general.architecture"] != "llama":
        sys.exit("only the llama architecture is handled")
    if kv["tokenizer.ggml.model"] != "gpt2" or kv["tokenizer.ggml.pre"] != "smollm":
        sys.exit("only the smollm byte-level BPE tokenizer is handled")
    L = int(kv["llama.block_count"])
    heads, kvheads = int(kv["llama.attention.head_count"]), int(kv["llama.attention.head_count_kv"])
    hidden = int(kv["llama.embedding_length"])
    tied = "output.weight" not in tensors
    os.makedirs(a.out, exist_ok=True)

    # --- tensors -----------------------------------------------------------
    src = {"model.embed_tokens.weight": ("token_embd.weight", 0)}
    per_layer = [("input_layernorm", "attn_norm", 0), ("mlp.down_proj", "ffn_down", 0),
                 ("mlp.gate_proj", "ffn_gate", 0), ("mlp.up_proj", "ffn_up", 0),
                 ("post_attention_layernorm", "ffn_norm", 0),
                 ("self_attn.k_proj", "attn_k", kvheads), ("self_attn.o_proj", "attn_output", 0),
                 ("self_attn.q_proj", "attn_q", heads), ("self_attn.v_proj", "attn_v", 0)]
    for i in range(L):
        for hf, gg, nh in per_layer:
            src[f"model.layers.{i}.{hf}.weight"] = (f"blk.{i}.{gg}.weight", nh)
    src["model.norm.weight"] = ("output_norm.weight", 0)
    if not tied:
        src["lm_head.weight"] = ("output.weight", 0)
    unused = set(tensors) - {g for g, _ in src.values()}
    if unused:
        sys.exit(f"tensors with no place: {sorted(unused)}")

    def get(name):
        gg, nh = src[name]
        x = dequant(tensors[gg])
        return unpermute(x, nh) if nh else x

    names = [(n, [int(d) for d in reversed(tensors[g].shape)]) for n, (g, _) in src.items()]
    size = write_safetensors(os.path.join(a.out, "model.safetensors"), names, get, a.dtype)
    t1 = time.time()

    # --- config ------------------------------------------------------------
    bos, eos = int(kv["tokenizer.ggml.bos_token_id"]), int(kv["tokenizer.ggml.eos_token_id"])
    pad, unk = int(kv["tokenizer.ggml.padding_token_id"]), int(kv["tokenizer.ggml.unknown_token_id"])
    theta = float(kv["llama.rope.freq_base"])
    eps = float("%.6g" % kv["llama.attention.layer_norm_rms_epsilon"])    # f32 1e-05 -> 1e-05
    dump(os.path.join(a.out, "config.json"), {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "bos_token_id": bos, "eos_token_id": eos,
        "hidden_act": "silu", "hidden_size": hidden, "initializer_range": 0.041666666666666664,
        "intermediate_size": int(kv["llama.feed_forward_length"]), "is_llama_config": True,
        "max_position_embeddings": int(kv["llama.context_length"]), "mlp_bias": False,
        "model_type": "llama", "num_attention_heads": heads, "num_hidden_layers": L,
        "num_key_value_heads": kvheads, "pad_token_id": pad, "pretraining_tp": 1,
        "rms_norm_eps": eps, "rope_interleaved": False, "rope_scaling": None,
        "rope_theta": int(theta) if theta == int(theta) else theta,
        "tie_word_embeddings": tied,
        "torch_dtype": {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[a.dtype],
        "transformers_version": "4.42.3", "use_cache": True,
        "vocab_size": int(kv["llama.vocab_size"])})
    dump(os.path.join(a.out, "generation_config.json"), {
        "_from_model_config": True, "bos_token_id": bos, "eos_token_id": eos,
        "pad_token_id": pad, "transformers_version": "4.42.3"})

    # --- tokenizer ---------------------------------------------------------
    toks, types = kv["tokenizer.ggml.tokens"], kv["tokenizer.ggml.token_type"]
    added = [added_token(i, t) for i, t in enumerate(toks) if types[i] in (SPECIAL, USER_DEFINED)]
    bl = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    dump(os.path.join(a.out, "tokenizer.json"), {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, bl]},
        "post_processor": None,
        "decoder": bl | {"add_prefix_space": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(toks)},
                  "merges": kv["tokenizer.ggml.merges"]}})
    template = kv["tokenizer.chat_template"]
    dump(os.path.join(a.out, "tokenizer_config.json"), {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in added},
        "additional_special_tokens": [toks[bos], toks[eos]],
        "bos_token": toks[bos], "chat_template": template,
        "clean_up_tokenization_spaces": False, "eos_token": toks[eos],
        "model_max_length": int(kv["llama.context_length"]), "pad_token": toks[pad],
        "tokenizer_class": "GPT2Tokenizer", "unk_token": toks[unk],
        "vocab_size": int(kv["llama.vocab_size"])})
    one = lambda s: {"content": s, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    dump(os.path.join(a.out, "special_tokens_map.json"), {
        "additional_special_tokens": [toks[bos], toks[eos]], "bos_token": one(toks[bos]),
        "eos_token": one(toks[eos]), "pad_token": one(toks[pad]), "unk_token": one(toks[unk])})
    t2 = time.time()
    print(f"{a.out}: {len(names)} tensors, {size} bytes, tied={tied}; "
          f"tensors {t1 - t0:.1f} s, tokenizer and json {t2 - t1:.1f} s")


if __name__ == "__main__":
    main()
