"""Odd and bad values of fields: the right status, and the field's name in the answer."""
import json
import os

import pytest

X = [{"role": "user", "content": "x"}]
GOLDEN = os.path.join(os.path.dirname(__file__), "..", "golden")


def refused(server, param, path="/v1/chat/completions", **fields):
    status, answer = server.post(path, **fields)
    assert status == 400, (fields, answer)
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error" and error["message"]
    assert param is None or error["param"].startswith(param), error
    return error["message"]


@pytest.mark.parametrize("field, value", [
    *(("max_tokens", v) for v in (0, -1, -2473, 2**31, 2**63, 1.5, "256", True)),
    ("stream", "true"), ("stop", 5), ("stop", ""), ("stop", ["a", ""]), ("stop", list("abcde")),
    ("stop", [1]), ("stop", "x" * 1000), ("top_p", "1"), ("top_p", 0), ("top_p", 1.01),
    ("temperature", -0.1), ("temperature", 2.1), ("temperature", []),
    *(("n", v) for v in (0, -1, 1000000, 1.5, "2")),
    ("seed", 1.5), ("seed", "1"), ("top_logprobs", 21), ("top_logprobs", 2), ("logprobs", 1),
    ("presence_penalty", 2.5), ("frequency_penalty", "a"), ("top_k", -2), ("min_p", 1.5),
    ("logit_bias", [1]), ("logit_bias", {"AI": -100}), ("logit_bias", {"-1": 5}),
    ("logit_bias", {"191222": -100}), ("logit_bias", {"2147483648": 1}),
    ("logit_bias", {"65": 1e39}), ("logit_bias", {"65": 101}), ("logit_bias", {"518": 100}),
    ("stop_token_ids", [151645, -5]), ("tools", "all"), ("tools", {"a": 1}),
    ("stream_options", {"include_usage": True}), ("stream_options", 1),
    ("response_format", {"type": "json_object"}), ("max_completion_tokens", "1"),
    ("model", 5), ("user", 5),
])
def test_a_bad_value_is_refused_by_its_field(tiny_abc, field, value):
    message = refused(tiny_abc, field, **{"messages": X, "max_tokens": 4, field: value})
    assert field in message or field in ("model",)


@pytest.mark.parametrize("messages", [
    {}, [], "x", [1], [{}], [{"role": "user"}], [{"content": "x"}],
    [{"role": "king", "content": "x"}], [{"role": "user", "content": 5}],
    [{"role": "user", "content": [{"type": "text"}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
    [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
    [{"role": "user", "content": None}],
])
def test_bad_messages_are_refused_by_name(tiny_abc, messages):
    refused(tiny_abc, "messages", messages=messages)


def test_messages_must_be_there(tiny_abc):
    refused(tiny_abc, "messages")
    refused(tiny_abc, "messages", messages=None)


@pytest.mark.parametrize("field", [
    "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "n", "logprobs",
    "top_logprobs", "presence_penalty", "frequency_penalty", "logit_bias", "user", "stream",
    "stream_options", "tools", "response_format", "max_completion_tokens"])
def test_null_means_the_default(tiny_abc, field):
    fields = {"messages": X, "max_tokens": 4, "stop": "E", field: None}
    status, answer = tiny_abc.post("/v1/chat/completions", **fields)
    assert status == 200, answer


def test_an_empty_list_of_stops_means_none(tiny_abc):
    assert tiny_abc.text(max_tokens=4, stop=[]) == "ABCD"


def test_more_tokens_than_the_context_holds_are_cut_to_it(tiny_abc):
    before = tiny_abc.rss_mib()
    frames = tiny_abc.events(max_tokens=100000000)
    for _ in range(20):
        next(frames)
    frames.close()
    assert tiny_abc.rss_mib() - before < 64


def test_text_parts_join_without_loss(tiny_rand):
    def ask(messages):
        status, a = tiny_rand.chat(messages=messages, max_tokens=8, temperature=0)
        assert status == 200, a
        return a["choices"][0]["message"]["content"], a["usage"]["prompt_tokens"]

    def parts(*texts):
        return [{"type": "text", "text": t} for t in texts]
    turns = [("user", "Remember 7431."), ("assistant", "I will remember 7431."),
             ("user", "Which number?")]
    string = ask([{"role": r, "content": c} for r, c in turns])
    assert ask([{"role": r, "content": parts(c)} for r, c in turns]) == string
    assert ask([{"role": r, "content": parts(c[:5], c[5:])} for r, c in turns]) == string


@pytest.mark.parametrize("text, status", [
    (rb'"ok \ud83d\ude00"', 200), (rb'"emoji \ud83d"', 400), (rb'"x \ude00 y"', 400),
    (rb'"\ude00\ud83d"', 400), (rb'"\uZZZZ"', 400), (rb'"\u12"', 400), (b'"a\xff\xfe\xc3b"', 400),
    (b'"a\xed\xa0\xbdb"', 400), (b'"abc\\"', 400), (b'"a\nb"', 400), (rb'"a\u0000b"', 400)])
def test_broken_strings_are_refused(tiny_rand, text, status):
    body = b'{"max_tokens":4,"temperature":0,"messages":[{"role":"user","content":' + text + b"}]}"
    got, _, answer = tiny_rand.request("POST", "/v1/chat/completions", body)
    assert got == status, answer


@pytest.mark.parametrize("body", [
    b"", b"[]", b"null", b"{", b'{"messages":[{"role":"user","content":"x"}]} x', b"\xef\xbb\xbf{}",
    b'{"max_tokens":2,"max_tokens":9,"messages":[{"role":"user","content":"x"}]}',
    b'{"messages":[{"role":"user","role":"system","content":"x"}]}',
    b'{"messages":[{"role":"user","content":"x"}],"max_tokens":NaN}',
    b"[" * 200000, b'{"a":' * 200000,
    b'{"messages":[{"role":"user","content":' + b"[" * 200000 + b"]" * 200000 + b"}]}"])
def test_a_body_that_is_no_good_json_is_refused_at_once(tiny_abc, body):
    before = tiny_abc.rss_mib()
    for _ in range(5):
        status, _, answer = tiny_abc.request("POST", "/v1/chat/completions", body)
        assert status == 400 and len(answer) < 4096, answer
    assert tiny_abc.rss_mib() - before < 64


def test_a_hundred_thousand_keys_are_read_quickly_enough_to_go_on(tiny_abc):
    body = {f"key{i}": i for i in range(100000)} | {"messages": X, "max_tokens": 2}
    status, _, _ = tiny_abc.request("POST", "/v1/chat/completions", body, timeout=20)
    assert status == 200


def test_ten_thousand_faults_give_one_short_error(tiny_abc):
    body = {"messages": [{"role": "king", "content": 5, "y" * 60: []}] * 10000}
    status, _, answer = tiny_abc.request("POST", "/v1/chat/completions", body)
    assert status == 400 and len(answer) < 4096


@pytest.mark.parametrize("prompt", [[], [[]], {}, 5, [1, "a"], [[1], 2], [-1], [520], [1.5],
                                    [[2**40]], [True]])
def test_a_bad_prompt_is_refused(tiny_abc, prompt):
    refused(tiny_abc, "prompt", "/v1/completions", prompt=prompt, max_tokens=2)


@pytest.mark.parametrize("fields", [{"suffix": "x"}, {"best_of": 4}, {"logprobs": 100},
                                    {"echo": "yes"}, {"max_tokens": 0}])
def test_what_completions_cannot_do_is_refused_by_name(tiny_abc, fields):
    refused(tiny_abc, next(iter(fields)), "/v1/completions", prompt="x", **fields)


def test_a_users_text_never_becomes_a_control_token(tiny_rand):
    with open(os.path.join(GOLDEN, "cases", "control_tokens.json")) as f:
        cases = json.load(f)
    for case in cases:
        status, answer = tiny_rand.chat(messages=case["messages"], max_tokens=1)
        assert status == 200, answer
        assert answer["usage"]["prompt_tokens"] == case["safe_prompt_tokens"], case


def test_bad_bias_hurts_no_running_stream(tiny_abc):
    streams = [tiny_abc.events(max_tokens=200) for _ in range(8)]
    for s in streams:
        next(s)
    for bias in ({"518": 100}, {"99999": 5}, {"-1": 5}):
        refused(tiny_abc, "logit_bias", messages=X, logit_bias=bias)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" * 8
    for s in streams:
        text = "".join(f["choices"][0]["delta"].get("content") or "" for f in s if f != "[DONE]")
        assert text == letters[:200]
