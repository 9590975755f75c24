"""Model directories: the right texts, or a refusal that says what is wrong."""
import os
import shutil
import struct
import subprocess

import pytest

from models import (expected, read_safetensors, tensors_of, variant, write, write_safetensors)
from server import MODELS, PROGRAM, Server, model_dir


def check_texts(server, name):
    for case in expected(name):
        status, answer = server.chat(messages=case["messages"], temperature=0,
                                     max_tokens=case["max_tokens"])
        assert status == 200, answer
        assert answer["usage"]["prompt_tokens"] == case["prompt_tokens"]
        assert answer["choices"][0]["message"]["content"] == case["content"]


def refusal(path, *words):
    """The server does not start, ends by itself with a sentence that has these words."""
    run = subprocess.run([PROGRAM, "serve", path, "--port", "0"], capture_output=True, text=True,
                         timeout=60)
    assert run.returncode == 1, run
    for word in words:
        assert word in run.stderr, run.stderr
    return run.stderr


@pytest.mark.parametrize("name", ["tiny-rand", "tiny-rand-16k", "tiny-window-16", "tiny-window-32",
                                  "tiny-tied", "tiny-tied-stray", "tiny-qwen3"])
def test_a_model_gives_its_recorded_texts(name):
    """Positions beyond 4,096 and 8,192, sliding windows, tied embeddings, a stray head, QK norm."""
    with Server(name) as server:
        check_texts(server, name)
        if name == "tiny-tied-stray":
            assert "lm_head.weight" in server.log()


@pytest.mark.parametrize("flags", [("--kv-type", "f32"), ("--kv-type", "bf16"),
                                   ("--cpu-path", "portable"), ("--threads", "1")])
def test_texts_do_not_depend_on_how_they_are_computed(flags):
    with Server("tiny-rand", *flags) as server:
        check_texts(server, "tiny-rand")


@pytest.mark.parametrize("window", [0, None])
def test_a_window_of_nothing_means_none(tmp_path, window):
    path = variant(tmp_path / "m", "tiny-rand", {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window})
    with Server(path) as server:
        check_texts(server, "tiny-rand")


@pytest.mark.parametrize("config, remove", [
    ({"dtype": "bfloat16"}, ["torch_dtype"]), ({"torch_dtype": "bfloat16"}, []),
    ({"torch_dtype": "torch.bfloat16"}, []), ({}, ["torch_dtype"]), ({"torch_dtype": "float32"}, [])])
def test_the_precision_key_may_have_any_of_its_names(tmp_path, config, remove):
    with Server(variant(tmp_path / "m", "tiny-rand", config, remove)) as server:
        check_texts(server, "tiny-rand")


def as_type(tensor, dtype):
    """A bf16 tensor as another type; of the tiny models no value is changed by that."""
    shape, data = tensor[1:]
    floats = struct.unpack(f"<{len(data) // 2}f",
                           b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2)))
    return dtype, shape, struct.pack(f"<{len(floats)}{'f' if dtype == 'F32' else 'e'}", *floats)


@pytest.mark.parametrize("types, weights", [
    (["F32"], "553 KiB"), (["F16"], "277 KiB"), (["F32", "F16", "BF16"], None)])
def test_each_tensor_is_read_in_its_own_type(tmp_path, types, weights):
    path = variant(tmp_path / "m", "tiny-rand", {"torch_dtype": "bfloat16"})
    tensors = tensors_of(path + "/model.safetensors")
    for i, name in enumerate(tensors):
        if types[i % len(types)] != "BF16":
            tensors[name] = as_type(tensors[name], types[i % len(types)])
    write_safetensors(path + "/model.safetensors", tensors)
    with Server(path) as server:
        check_texts(server, "tiny-rand")
        assert weights is None or f"weights loaded: {weights}" in server.log()
        assert "The configuration says bf16" in server.log()


def shards(path, names_in_first):
    """Cut path/model.safetensors in two; -> the tensors' places."""
    tensors = tensors_of(path + "/model.safetensors")
    os.remove(path + "/model.safetensors")
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    place = {n: files[0] if names_in_first(n) else files[1] for n in tensors}
    for file in files:
        write_safetensors(f"{path}/{file}", {n: t for n, t in tensors.items() if place[n] == file})
    return place


def test_shards_are_read_where_the_index_says(tmp_path):
    path = variant(tmp_path / "m", "tiny-rand")
    place = shards(path, lambda n: "layers.0" in n)
    write(path + "/model.safetensors.index.json", {"metadata": {}, "weight_map": place})
    shutil.copy(model_dir("tiny-abc") + "/model.safetensors", path)  # a stray one
    with Server(path) as server:
        check_texts(server, "tiny-rand")


def test_an_index_that_does_not_hold_stops_loading(tmp_path):
    path = variant(tmp_path / "m", "tiny-rand")
    place = shards(path, lambda n: "layers.0" in n)
    index = path + "/model.safetensors.index.json"
    one = "model.layers.1.mlp.up_proj.weight"
    for wrong in ("../model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors"):
        write(index, {"weight_map": {**place, one: wrong}})
        refusal(path, os.path.basename(wrong))
    write(index, {"weight_map": {n: f for n, f in place.items() if n != one}})
    refusal(path, one)
    write(index, {"weight_map": place})
    os.remove(path + "/model-00002-of-00002.safetensors")
    refusal(path, "model-00002-of-00002.safetensors")


def test_a_missing_head_stops_loading(tmp_path):
    for i, (config, remove) in enumerate([({"tie_word_embeddings": False}, []),
                                          ({}, ["tie_word_embeddings"])]):
        path = variant(tmp_path / f"m{i}", "tiny-tied", config, remove)
        refusal(path, "lm_head.weight")


@pytest.mark.parametrize("name, damage", [
    ("long", lambda b: (2**63).to_bytes(8, "little") + b[8:]),
    ("max", lambda b: (2**64 - 1).to_bytes(8, "little") + b[8:]),
    ("garbage after", lambda b: b + b"x"), ("cut", lambda b: b[:-100]), ("empty", lambda b: b""),
    ("no json", lambda b: b[:8] + b"x" + b[9:]),
    ("reversed", lambda b: b.replace(b'"F32"', b'"F99"').replace(b'"BF16"', b'"BF99"'))])
def test_a_damaged_file_is_refused(tmp_path, name, damage):
    path = variant(tmp_path / "m", "tiny-rand")
    with open(path + "/model.safetensors", "rb") as f:
        good = f.read()
    write(path + "/model.safetensors", damage(good))
    refusal(path, "model.safetensors")


def test_a_wrong_shape_names_the_tensor_and_both_shapes(tmp_path):
    path = variant(tmp_path / "m", "tiny-rand", {"intermediate_size": 256})
    refusal(path, "model.layers.0.mlp", "128", "256")


@pytest.mark.parametrize("config, words", [
    ({"architectures": ["GPT2LMHeadModel"]}, ["GPT2LMHeadModel", "LlamaForCausalLM"]),
    ({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}, ["Qwen2ForCausalLM"]),
    ({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "use_sliding_window": True},
     ["use_sliding_window"]),
    ({"hidden_act": "gelu"}, ["hidden_act", "gelu"]),
    ({"rope_scaling": {"type": "yarn", "factor": 4}}, ["yarn"]),
    ({"num_key_value_heads": 3}, ["num_key_value_heads"]), ({"head_dim": -16}, ["head_dim"]),
    ({"hidden_size": 2**40}, ["hidden_size"]), ({"num_hidden_layers": "2"}, ["num_hidden_layers"]),
    ({"quantization_config": {"quant_method": "awq"}}, ["quantization_config"])])
def test_a_configuration_that_would_run_wrongly_is_refused(tmp_path, config, words):
    refusal(variant(tmp_path / "m", "tiny-rand", config), "config.json", *words)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["[" * 200000, "{", "", '{"a": "\\', "\xff", '{"a":1,"a":2}'])
def test_a_file_that_is_no_good_json_is_refused_by_name(tmp_path, file, content):
    refusal(variant(tmp_path / "m", "tiny-rand", files={file: content.encode("latin-1")}), file)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path, file):
    path = variant(tmp_path / "m", "tiny-rand")
    os.remove(f"{path}/{file}")
    refusal(path, file)


def test_a_missing_directory_is_named(tmp_path):
    refusal(str(tmp_path / "nothing"), "nothing")


TEMPLATE = "chat_template.jinja"


def template_of(name):
    import json
    with open(os.path.join(MODELS, name, "tokenizer_config.json")) as f:
        return json.load(f)


def test_the_chat_template_is_found_in_all_its_places(tmp_path):
    config = template_of("tiny-rand")
    source = config.pop("chat_template")
    stale = {**config, "chat_template": "stale {{ messages | length }}"}
    named = {**config, "chat_template": [{"name": "tool_use", "template": "tools"},
                                         {"name": "default", "template": source}]}
    for i, files in enumerate([
            {"tokenizer_config.json": config, TEMPLATE: source},
            {"tokenizer_config.json": stale, TEMPLATE: source},
            {"tokenizer_config.json": named}]):
        with Server(variant(tmp_path / f"m{i}", "tiny-rand", files=files)) as server:
            check_texts(server, "tiny-rand")
    path = variant(tmp_path / "none", "tiny-rand", files={"tokenizer_config.json": config})
    with Server(path) as server:
        status, answer = server.chat("x")
        assert status == 400 and "template" in answer["error"]["message"]
        assert "template" in server.log()
        status, _ = server.post("/v1/completions", prompt="x", max_tokens=2)
        assert status == 200


def test_block_tags_leave_no_white_space(tmp_path):
    config = {**template_of("tiny-rand"), "chat_template":
              "{{ bos_token }}\n{% for message in messages %}\n    {% if message['content'] %}\n"
              "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
              "{{ message['content'] }}<|eot_id|>\n    {% endif %}\n{% endfor %}\n"
              "{% if add_generation_prompt %}\n"
              "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}\n"}
    path = variant(tmp_path / "m", "tiny-rand", files={"tokenizer_config.json": config})
    with Server(path) as server:
        _, answer = server.chat(messages=[{"role": "system", "content": "Be brief."},
                                          {"role": "user", "content": "hello"}], max_tokens=8)
        assert answer["usage"]["prompt_tokens"] == 29


@pytest.mark.parametrize("source, word", [
    ("{% include 'x' %}", "include"), ("{{ 'a' | nonsense }}", "nonsense"), ("{% if %}", "line 1")])
def test_a_template_that_cannot_be_run_is_refused_at_start(tmp_path, source, word):
    refusal(variant(tmp_path / "m", "tiny-rand", files={TEMPLATE: source}), TEMPLATE, word)


@pytest.mark.parametrize("source", [
    "{% for i in range(10 ** 9) %}x{% endfor %}", "{{ 'a' * 10 ** 9 }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"])
def test_a_hostile_template_hangs_nobody(tmp_path, source):
    with Server(variant(tmp_path / "m", "tiny-rand", files={TEMPLATE: source})) as server:
        assert server.chat("x")[0] == 400
        assert server.request("GET", "/health")[0] == 200


def test_a_budget_that_memory_cannot_hold_is_refused():
    run = subprocess.run([PROGRAM, "serve", model_dir("tiny-rand"), "--port", "0",
                          "--kv-memory", "100000G"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "memory" in run.stderr


def test_the_log_tells_the_budget(tiny_rand):
    log = tiny_rand.log()
    for word in ("weights", "activations", "KV", "margin", "a token"):
        assert word in log
    header, _ = read_safetensors(model_dir("tiny-rand") + "/model.safetensors")
    assert header
