"""Speculative decoding by prompt lookup: answers are what they are without."""
import random
import re
import threading

from server import Server


def accepted(server):
    _, _, body = server.request("GET", "/metrics")
    found = re.search(r"^dormouse_spec_decode_num_accepted_tokens_total{.*} (\d+)$", body.decode(), re.M)
    return int(found.group(1))


def requests():
    """Prompts of phrases that return, and every way to choose among tokens."""
    choose = random.Random(3)
    phrases = [[choose.randrange(60, 90) for _ in range(choose.randrange(3, 9))] for _ in range(4)]
    ways = ({"temperature": 0}, {"temperature": 0.5, "seed": 5}, {"temperature": 0, "logprobs": 3},
            {"temperature": 0.3, "seed": 1, "n": 3}, {"temperature": 0, "stop": ["JKLM", "e "]},
            {"temperature": 0.4, "seed": 2, "frequency_penalty": 0.2, "presence_penalty": 0.1})
    for i in range(24):
        prompt = sum((choose.choice(phrases) for _ in range(choose.randrange(2, 12))), [])
        yield {"prompt": prompt, "max_tokens": choose.randrange(1, 120), **ways[i % len(ways)]}


def answers(server, asked):
    """All at once; without what depends on who asked before."""
    out = [None] * len(asked)

    def ask(i):
        status, answer = server.post("/v1/completions", **asked[i])
        assert status == 200, answer
        for key in ("dormouse", "prompt_tokens_details"):
            answer["usage"].pop(key)
        out[i] = answer["choices"], answer["usage"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(asked))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out


def test_answers_and_usage_are_the_same_with_prompt_lookup(tiny_abc, tiny_rand):
    asked = list(requests())
    came_true = 0
    for plain in (tiny_abc, tiny_rand):
        with Server(plain.name, "--prompt-lookup", "8", "--max-running", "3") as server:
            together = answers(server, asked)
            came_true += accepted(server)
        assert together == [answers(plain, [a])[0] for a in asked]
        assert accepted(plain) == 0
    assert came_true > 0
