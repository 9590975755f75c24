#!/usr/bin/env python3
"""random_model.py DIR TOKENIZER [8b|1b|small] - a Llama of random bf16 weights, for measuring speed.

8b has the shape of Llama 3.1 8B (16 GB), 1b that of Llama 3.2 1B (2.5 GB), small that of a toy.
All weights repeat one piece of random numbers, and the shards are written side by side, so that
making them costs as much as writing them.  The tokenizer is that of the model folder TOKENIZER, or
for - one made up: bytes, and all words of two and three letters; small has room for no larger one.
Ids beyond it are never chosen.  Needs nothing but Python.
"""
import json
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor

WORDS = 20669  # of the tokenizer that is made up
SHAPES = {
    "8b": dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336,
               num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
               max_position_embeddings=131072),
    "1b": dict(vocab_size=128256, hidden_size=2048, intermediate_size=8192,
               num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
               max_position_embeddings=131072, tie_word_embeddings=True),
    "small": dict(vocab_size=20672, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                  num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048),
}
PIECE = 32 << 20
SHARD = 1 << 30  # bytes at least, but for the last one
# The upper half of a bf16 between 2^-7 and 2^-5, of either sign.
UPPER = bytes(0xbc if i & 1 else 0x3c for i in range(256))


def tensors(c):
    """-> (name, shape) of each."""
    hidden, ffn, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (hidden,)
        yield layer + "self_attn.q_proj.weight", (q, hidden)
        yield layer + "self_attn.k_proj.weight", (kv, hidden)
        yield layer + "self_attn.v_proj.weight", (kv, hidden)
        yield layer + "self_attn.o_proj.weight", (hidden, q)
        yield layer + "post_attention_layernorm.weight", (hidden,)
        yield layer + "mlp.gate_proj.weight", (ffn, hidden)
        yield layer + "mlp.up_proj.weight", (ffn, hidden)
        yield layer + "mlp.down_proj.weight", (hidden, ffn)
    yield "model.norm.weight", (hidden,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], hidden)


def bytes_of(shape):
    n = 2
    for side in shape:
        n *= side
    return n


def config(shape):
    c = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu",
             rms_norm_eps=1e-5, rope_theta=500000.0, torch_dtype="bfloat16",
             tie_word_embeddings=False, bos_token_id=WORDS - 1, eos_token_id=WORDS - 1)
    c.update(SHAPES[shape])
    c["head_dim"] = c["hidden_size"] // c["num_attention_heads"]
    return c


def weights_bytes(shape):
    return sum(bytes_of(sides) for _, sides in tensors(config(shape)))


# ---- weights ----

def random_piece():
    piece = bytearray(PIECE)
    piece[0::2] = os.urandom(PIECE // 2)
    piece[1::2] = os.urandom(PIECE // 2).translate(UPPER)
    return memoryview(bytes(piece))


def shards_of(c):
    """The tensors in order, cut into shards."""
    shards, size = [[]], 0
    for name, shape in tensors(c):
        if size >= SHARD:
            shards.append([])
            size = 0
        shards[-1].append((name, shape))
        size += bytes_of(shape)
    return shards


def write_shard(path, shard, piece):
    header, at = {}, 0
    for name, shape in shard:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + bytes_of(shape)]}
        at += bytes_of(shape)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb", buffering=0) as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, shape in shard:
            left = bytes_of(shape)
            source = memoryview(b"\x80\x3f" * (left // 2)) if len(shape) == 1 else piece  # norms: 1
            while left > 0:
                left -= f.write(source[:left])


def write_weights(folder, c):
    shards, piece = shards_of(c), random_piece()
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda name, shard: write_shard(os.path.join(folder, name), shard, piece),
                      names, shards))
    return {tensor: name for name, shard in zip(names, shards) for tensor, _ in shard}


# ---- the tokenizer ----

def byte_names():
    """The character by which a byte-level tokenizer.json writes each byte."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    rest = (chr(256 + i) for i in range(256))
    return [chr(b) if b in plain else next(rest) for b in range(256)]


def tokenizer():
    letters = "abcdefghijklmnopqrstuvwxyz."
    pairs = [[a, b] for a in letters for b in letters]
    merges = pairs + [[a + b, c] for a, b in pairs for c in letters]
    words = byte_names() + ["".join(m) for m in merges]
    assert len(words) + 1 == WORDS
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [{"id": len(words), "content": "<end>", "single_word": False,
                          "lstrip": False, "rstrip": False, "normalized": False,
                          "special": True}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {word: i for i, word in enumerate(words)}, "merges": merges},
    }


def make(folder, source, shape):
    """Answers the seconds that writing the weights took."""
    os.makedirs(folder, exist_ok=True)

    def write(name, what):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(what, f)

    c, began = config(shape), time.monotonic()
    if source != "-":
        c.update(bos_token_id=1, eos_token_id=2)
    where = write_weights(folder, c)
    took = time.monotonic() - began
    write("config.json", c)
    write("model.safetensors.index.json",
          {"metadata": {"total_size": weights_bytes(shape)}, "weight_map": where})
    if source != "-":
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(source, name), folder)
    else:
        write("tokenizer.json", tokenizer())
        write("tokenizer_config.json", {"eos_token": "<end>"})
    return took


if __name__ == "__main__":
    took = make(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "8b")
    print(f"{took:.1f} s")
