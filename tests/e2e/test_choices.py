"""Seeds, and several choices of one request."""
from server import collect

HOT = {"content": "hello", "max_tokens": 24, "temperature": 1.5}


def test_a_seed_repeats_and_no_seed_varies(tiny_rand):
    first = tiny_rand.text(**dict(HOT), seed=42)
    assert {tiny_rand.text(**dict(HOT), seed=42) for _ in range(3)} == {first}
    assert tiny_rand.text(**dict(HOT), seed=43) != first
    assert len({tiny_rand.text(**dict(HOT)) for _ in range(5)}) > 1


def test_choices_of_one_seed_differ_and_repeat(tiny_rand):
    status, answer = tiny_rand.chat(**dict(HOT), n=3, seed=42)
    assert status == 200, answer
    choices = answer["choices"]
    assert [c["index"] for c in choices] == [0, 1, 2]
    texts = [c["message"]["content"] for c in choices]
    assert len(set(texts)) == 3
    assert answer["usage"]["completion_tokens"] == 72
    assert texts[0] == tiny_rand.text(**dict(HOT), seed=42)

    frames = list(tiny_rand.events(messages=[{"role": "user", "content": "hello"}], n=3, seed=42,
                                   max_tokens=24, temperature=1.5))
    assert frames[-1] == "[DONE]"
    for choice, text in zip(choices, texts):
        own = [{**f, "choices": c} for f in frames[:-1]
               if (c := [c for c in f["choices"] if c["index"] == choice["index"]])]
        got = collect(own)
        assert (got["text"], got["finish_reason"]) == (text, choice["finish_reason"])
        assert [f["choices"][0]["finish_reason"] for f in own].count(None) == len(own) - 1
