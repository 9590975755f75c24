"""A prompt again, and prompts that differ in one token: every answer is its own."""
import random

import pytest

from server import Server

BLOCK = 16


@pytest.mark.parametrize("tokens", [k * BLOCK + d for k in (1, 2, 3, 4, 8) for d in (-1, 0, 1)])
def test_a_prompt_asked_again_is_answered_alike(tiny_rand, tokens):
    """At the borders of KV blocks, where a prompt leaves no token or one for the next block."""
    prompt = [65 + i % 20 for i in range(tokens)]
    for fields in ({"max_tokens": 8}, {"max_tokens": 1}, {"max_tokens": 4, "logprobs": 3}):
        answers = [tiny_rand.post("/v1/completions", prompt=prompt, temperature=0, **fields)
                   for _ in range(3)]
        for status, answer in answers:
            assert status == 200, answer
            assert answer["choices"] == answers[0][1]["choices"]
            usage = answer["usage"]
            assert usage["prompt_tokens"] == tokens
            assert usage["prompt_tokens_details"]["cached_tokens"] < tokens


def test_prompts_that_differ_in_one_token_have_their_own_answers():
    choose = random.Random(1)
    whole = [choose.randrange(256) for _ in range(4 * BLOCK)]
    front = [choose.randrange(256) for _ in range(BLOCK)]
    prompts = [whole[:i] + [(whole[i] + 7) % 256] + whole[i + 1:] for i in range(len(whole))]
    prompts += [front + whole, whole[BLOCK:] + whole[:BLOCK], whole[:BLOCK] * 4, whole[:BLOCK] * 3]

    def ask(server, prompt):
        status, answer = server.post("/v1/completions", prompt=prompt, temperature=0, max_tokens=8)
        assert status == 200, answer
        return answer["choices"][0]["text"]

    with Server("tiny-rand") as server:
        after_the_whole = []
        for prompt in prompts:
            ask(server, whole)
            after_the_whole.append(ask(server, prompt))
    with Server("tiny-rand") as server:
        cold = [ask(server, prompt) for prompt in reversed(prompts)][::-1]
    assert after_the_whole == cold
    assert len(set(cold)) > 8  # the tokens do matter
