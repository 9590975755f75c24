"""The frames of a stream: their order, their end, whole characters."""
import urllib.error

import pytest

from models import tensors_of, variant, write_safetensors
from server import Server, collect


def test_usage_comes_only_where_it_was_asked_for(tiny_abc):
    for options, wanted in (({"include_usage": True}, True), ({"include_usage": False}, False),
                            (None, False)):
        frames = list(tiny_abc.events(max_tokens=5, temperature=0, stream_options=options))
        assert frames[-1] == "[DONE]"
        chunks = frames[:-1]
        assert all("choices" in c for c in chunks)
        assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
        assert len({(c["id"], c["created"]) for c in chunks}) == 1
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert all("role" not in c["choices"][0]["delta"] for c in chunks[1:] if c["choices"])
        usages = [c for c in chunks if c.get("usage")]
        if wanted:
            assert usages == [chunks[-1]] and chunks[-1]["choices"] == []
            usage = chunks[-1]["usage"]
            assert usage["completion_tokens"] == 5
            assert usage["total_tokens"] == usage["prompt_tokens"] + 5
        else:
            assert not usages and all(c["choices"] for c in chunks)


@pytest.mark.parametrize("fields, reason, text", [
    ({"max_tokens": 5}, "length", "ABCDE"),
    ({"max_tokens": 50, "stop": ["F"]}, "stop", "ABCDE"),
    ({"max_tokens": 2000, "content": "word " * 8000}, "length", None)])
def test_a_stream_ends_by_one_reason_and_done(tiny_abc, fields, reason, text):
    content = fields.pop("content", "x")
    frames = list(tiny_abc.events(messages=[{"role": "user", "content": content}], temperature=0,
                                  **fields))
    reasons = [c["choices"][0]["finish_reason"] for c in frames[:-1]]
    assert [r for r in reasons if r] == [reason] and reasons[-1] == reason
    assert frames[-1] == "[DONE]"
    assert text is None or collect(frames)["text"] == text


def test_an_end_token_stops_and_is_not_shown():
    with Server("tiny-hi") as server:
        got = collect(server.events(max_tokens=50, temperature=0,
                                    stream_options={"include_usage": True}))
        assert (got["text"], got["finish_reason"]) == ("Hi", "stop")
        assert got["usage"]["completion_tokens"] == 3  # H, i, and the end token
        assert server.text(max_tokens=50, temperature=0) == "Hi"
        longer = server.text(max_tokens=50, temperature=0, ignore_eos=True)
        assert longer.startswith("Hi") and "<|eot_id|>" not in longer


def test_a_broken_model_ends_a_request_and_not_the_server(tmp_path):
    path = variant(tmp_path / "m", "tiny-rand")
    tensors = tensors_of(path + "/model.safetensors")
    dtype, shape, data = tensors["model.norm.weight"]
    tensors["model.norm.weight"] = (dtype, shape, b"\xc0\x7f" * (len(data) // 2))  # NaN
    write_safetensors(path + "/model.safetensors", tensors)
    with Server(path) as server:
        for stream in (False, True):
            status, _, body = server.request(
                "POST", "/v1/chat/completions",
                {"messages": [{"role": "user", "content": "x"}], "stream": stream})
            assert status == 500 and b'"error"' in body
        assert server.request("GET", "/health")[0] == 200


def test_a_fault_in_mid_stream_is_one_error_frame_and_harms_nobody_else(tmp_path):
    """The embedding of the 26th token is no number: every answer that comes so far fails there,
    and what it leaves in KV blocks reaches no other answer."""
    path = variant(tmp_path / "m", "tiny-abc")
    tensors = tensors_of(path + "/model.safetensors")
    dtype, shape, data = tensors["model.embed_tokens.weight"]
    row, z = 2 * shape[1], ord("Z") - ord("!")
    tensors["model.embed_tokens.weight"] = (
        dtype, shape, data[:z * row] + b"\xc0\x7f" * shape[1] + data[(z + 1) * row:])
    write_safetensors(path + "/model.safetensors", tensors)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    with Server(path, "--kv-blocks", "8") as server:
        for _ in range(20):
            try:
                frames = list(server.events(max_tokens=60, temperature=0))
            except urllib.error.HTTPError as e:  # the fault was there before the first frame
                with e:
                    assert e.code == 500 and b'"error"' in e.read()
            else:
                assert [f for f in frames if "error" in f] == frames[-1:]
                assert frames[-1]["error"]["type"] == "server_error"
                assert collect(frames)["text"] == letters
            assert server.chat(max_tokens=60, temperature=0)[0] == 500
            assert server.text(max_tokens=26, temperature=0) == letters


def test_a_cut_character_is_the_same_streamed_and_not(tiny_emoji):
    for n in range(1, 10):
        got = collect(tiny_emoji.events(max_tokens=n, temperature=0))
        status, answer = tiny_emoji.chat(max_tokens=n, temperature=0)
        text = answer["choices"][0]["message"]["content"]
        assert got["text"] == text
        assert text.replace("\ufffd", "") == "\U0001F600" * (n // 4)
        assert got["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == n


def test_bytes_that_are_no_utf8_become_replacement_characters():
    tokens = b"\x41\xc3\xff\x42\xed\xa0\x80\x43"
    with Server("tiny-badbytes") as server:
        for n in (1, 2, 3, 7, 8, 24):
            want = (tokens * 3)[:n].decode("utf-8", "replace")
            assert collect(server.events(max_tokens=n, temperature=0))["text"] == want
            assert server.text(max_tokens=n, temperature=0) == want


def test_logprobs_give_the_bytes_of_a_part_of_a_character(tiny_emoji):
    _, answer = tiny_emoji.chat(max_tokens=4, temperature=0, logprobs=True, top_logprobs=1)
    content = answer["choices"][0]["logprobs"]["content"]
    assert [t["bytes"] for t in content] == [[240], [159], [152], [128]]


def test_every_number_is_finite(tiny_abc):
    status, _, body = tiny_abc.request("POST", "/v1/chat/completions", {
        "messages": [{"role": "user", "content": "x"}], "temperature": 1e-6, "top_k": 1,
        "max_tokens": 3, "logprobs": True, "top_logprobs": 20})
    assert status == 200
    assert b"Infinity" not in body and b"NaN" not in body and b"inf" not in body


def test_several_choices_stream_with_their_own_index_and_end(tiny_rand):
    ends, texts = {}, {}
    for frame in tiny_rand.events(messages=[{"role": "user", "content": "hello"}], n=3,
                                  max_tokens=12, temperature=0):
        if frame == "[DONE]":
            continue
        choice, = frame["choices"]
        i = choice["index"]
        assert i not in ends
        texts[i] = texts.get(i, "") + (choice["delta"].get("content") or "")
        if choice["finish_reason"]:
            ends[i] = choice["finish_reason"]
    assert ends == {0: "length", 1: "length", 2: "length"}
    assert len(set(texts.values())) == 1  # temperature 0
