"""The API as the openai Python client sees it, unchanged."""
import openai
import pytest


@pytest.fixture(name="client")
def client_of(tiny_rand):
    return openai.OpenAI(base_url=tiny_rand.base + "/v1", api_key="none", max_retries=0)


@pytest.fixture(name="abc")
def client_of_abc(tiny_abc):
    return openai.OpenAI(base_url=tiny_abc.base + "/v1", api_key="none", max_retries=0)


HELLO = [{"role": "user", "content": "hello"}]


def test_a_chat_answer_has_every_part(client):
    answer = client.chat.completions.create(model="tiny-rand", messages=HELLO, temperature=0,
                                            max_tokens=12)
    assert answer.object == "chat.completion" and answer.model == "tiny-rand"
    assert answer.id.startswith("chatcmpl-") and answer.created > 0
    choice = answer.choices[0]
    assert choice.index == 0 and choice.finish_reason == "length"
    assert choice.message.role == "assistant" and choice.message.refusal is None
    assert choice.message.content == "J padword468R padword466 sayedefeve t t t t"
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (12, 12, 24)
    assert usage.prompt_tokens_details.cached_tokens == 0


def test_a_stream_joins_to_the_same_text(client):
    whole = client.chat.completions.create(model="tiny-rand", messages=HELLO, temperature=0,
                                           max_tokens=12)
    chunks = list(client.chat.completions.create(
        model="tiny-rand", messages=HELLO, temperature=0, max_tokens=12, stream=True,
        stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 12
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert len({(c.id, c.created, c.model, c.object) for c in chunks}) == 1


def test_a_completion_continues_text_and_ids_alike(client, tiny_rand):
    by_text = client.completions.create(model="tiny-rand", prompt="the cat sat", temperature=0,
                                        max_tokens=6)
    assert by_text.object == "text_completion" and by_text.id.startswith("cmpl-")
    chunks = list(client.completions.create(model="tiny-rand", prompt="the cat sat",
                                            temperature=0, max_tokens=6, stream=True))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == by_text.choices[0].text
    several = client.completions.create(model="tiny-rand", prompt=["the cat sat", "one two"],
                                        temperature=0, max_tokens=6)
    assert [c.index for c in several.choices] == [0, 1]
    assert several.choices[0].text == by_text.choices[0].text


def test_models_are_listed_and_found(client):
    assert [m.id for m in client.models.list()] == ["tiny-rand"]
    assert client.models.retrieve("tiny-rand").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_errors_become_the_clients_exceptions(client):
    with pytest.raises(openai.NotFoundError) as e:
        client.chat.completions.create(model="gpt-4o", messages=HELLO)
    assert e.value.code == "model_not_found" and e.value.param == "model"
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model="tiny-rand", messages=HELLO, temperature=3)
    assert e.value.param == "temperature" and "3" in e.value.message
    for refused in ({"tools": [{"type": "function", "function": {"name": "f"}}]},
                    {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}):
        with pytest.raises(openai.BadRequestError) as e:
            client.chat.completions.create(model="tiny-rand", messages=HELLO, **refused)
        assert e.value.param == next(iter(refused))


def test_harmless_unknown_fields_are_ignored(client):
    client.chat.completions.create(
        model="tiny-rand", messages=HELLO, max_tokens=1, user="u", store=False,
        metadata={"a": "b"}, extra_body={"something_new": [1, 2], "prompt_cache_key": "k"})


def test_a_stop_string_never_leaks_also_across_tokens(abc):
    for stop, text in (("F", "ABCDE"), (["DEF"], "ABC"), (["XYZ", "HI"], "ABCDEFG"),
                       ("ABC", "")):
        ask = {"model": "tiny-abc", "messages": HELLO, "max_tokens": 40, "stop": stop}
        whole = abc.chat.completions.create(**ask)
        assert whole.choices[0].message.content == text
        assert whole.choices[0].finish_reason == "stop"
        chunks = abc.chat.completions.create(stream=True, **ask)
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == text


def test_text_held_back_for_a_stop_string_is_not_lost(abc):
    answer = abc.chat.completions.create(model="tiny-abc", messages=HELLO, max_tokens=5,
                                         stop=["DEFG"])
    assert answer.choices[0].message.content == "ABCDE"
    assert answer.choices[0].finish_reason == "length"


def test_logprobs_are_those_of_the_tokens_given(client):
    answer = client.chat.completions.create(model="tiny-rand", messages=HELLO, temperature=0,
                                            max_tokens=5, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == 5
    assert "".join(t.token for t in content) == answer.choices[0].message.content
    for t in content:
        assert t.logprob <= 0 and len(t.top_logprobs) == 3
        assert t.top_logprobs[0].token == t.token  # greedy
        assert bytes(t.bytes).decode() == t.token


def test_logit_bias_forbids_and_forces(abc):
    b = abc.chat.completions.create(model="tiny-abc", messages=HELLO, max_tokens=1, temperature=0,
                                    logit_bias={"32": -100, "57": 100})
    assert b.choices[0].message.content == "Z"


def test_echo_gives_the_prompt_back_with_its_logprobs(client):
    answer = client.completions.create(model="tiny-rand", prompt="the cat sat", max_tokens=2,
                                       temperature=0, echo=True, logprobs=2)
    choice = answer.choices[0]
    assert "the cat sat" in choice.text
    assert choice.logprobs.token_logprobs[0] is None
    assert len(choice.logprobs.tokens) == answer.usage.total_tokens
    assert all(p <= 0 for p in choice.logprobs.token_logprobs[1:])


def test_one_seed_gives_one_text_and_choices_differ(client):
    def ask(**k):
        return client.chat.completions.create(model="tiny-rand", messages=HELLO, max_tokens=24,
                                              temperature=1.5, **k)
    first = ask(seed=42).choices[0].message.content
    assert {ask(seed=42).choices[0].message.content for _ in range(3)} == {first}
    assert ask(seed=43).choices[0].message.content != first
    assert len({ask().choices[0].message.content for _ in range(5)}) > 1
    three = ask(seed=42, n=3)
    assert [c.index for c in three.choices] == [0, 1, 2]
    assert len({c.message.content for c in three.choices}) > 1
    assert three.choices[0].message.content == first
    assert three.usage.completion_tokens == 72
