"""Conversations that sleep: their answers are those of a server that never saw them before,
and what was kept is not computed again."""
import shutil
import tempfile
import time

import pytest

from models import variant
from server import Server, together

BLOCK = 16
QUICK = ("--copy-after", "1ms", "--ssd-after", "1ms", "--idle-after", "1ms", "--residency", "0ms")
SMALL = ("--kv-blocks", "96", "--context", "1024")


@pytest.fixture
def folder():
    path = tempfile.mkdtemp(prefix="dormouse-sleep-")
    yield path + "/ssd"
    shutil.rmtree(path)


@pytest.fixture(scope="module", name="cold")
def cold_server():
    """Asked to score its prompts, which it computes whole for that."""
    with Server("tiny-rand") as server:
        yield server


def ask(server, prompt, **fields):
    """-> (choice, tokens of the prompt, cached ones)"""
    fields = {"temperature": 0, "max_tokens": 12, "logprobs": 2, **fields}
    status, answer = server.post("/v1/completions", prompt=prompt, **fields)
    assert status == 200, answer
    usage = answer["usage"]
    return (answer["choices"][0], usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"])


def cold_answer(cold, prompt):
    choice, n, cached = ask(cold, prompt, echo=True)
    assert cached == 0
    logprobs = choice["logprobs"]
    return logprobs["tokens"][n:], logprobs["token_logprobs"][n:]


def assert_cold(cold, server, prompt):
    """-> tokens of the prompt, cached ones"""
    choice, n, cached = ask(server, prompt)
    logprobs = choice["logprobs"]
    assert (logprobs["tokens"], logprobs["token_logprobs"]) == cold_answer(cold, prompt)
    assert cached % BLOCK == 0 and cached < n
    return n, cached


def tokens(seed, n):
    return [(seed * 7919 + i * i * 31 + i * 17) % 256 for i in range(n)]


def test_turn_after_turn_only_what_is_new_is_computed(cold):
    with Server("tiny-rand") as server:
        prompt = tokens(1, 100)
        known = 0
        for turn in range(6):
            n, cached = assert_cold(cold, server, prompt)
            assert cached == known
            known = (n - 1) // BLOCK * BLOCK
            prompt = prompt + tokens(turn + 2, 30 + turn)


def test_forks_and_edits_keep_what_they_have_in_common(cold):
    with Server("tiny-rand") as server:
        trunk = tokens(1, 200)
        assert_cold(cold, server, trunk)
        for i in range(4):
            _, cached = assert_cold(cold, server, trunk + tokens(i + 5, 20))
            assert cached == 192
        for at in (0, 15, 16, 100, 199):
            edited = trunk[:at] + [(trunk[at] + 1) % 256] + trunk[at + 1:]
            _, cached = assert_cold(cold, server, edited)
            assert cached == min(at, 198) // BLOCK * BLOCK


@pytest.mark.parametrize("tiers", ["ram", "ssd", "both"])
def test_many_conversations_over_a_small_pool_answer_as_if_alone(cold, folder, tiers):
    ram = ("--ram", "8M") if tiers != "ssd" else ()
    ssd = ("--ssd", folder, "--ssd-size", "16M") if tiers != "ram" else ()
    with Server("tiny-rand", *SMALL, *QUICK, *ram, *ssd) as server:
        talks = [tokens(i, 150 + 31 * i) for i in range(8)]
        for _ in range(3):
            together([lambda t=t: assert_cold(cold, server, t) for t in talks], 4)
            talks = [t + tokens(len(t), 20) for t in talks]
        total = server.metrics_sum("dormouse_prompt_tokens_total")
        assert 0 <= server.metrics_sum("dormouse_cached_tokens_total") < total


def test_a_stopped_server_comes_back_with_its_conversations(cold, folder):
    flags = ("--ssd", folder, "--ssd-size", "32M")
    prompt = tokens(3, 3000)
    with Server("tiny-rand", *flags) as server:
        assert_cold(cold, server, prompt)
    for _ in range(2):
        with Server("tiny-rand", *flags) as server:
            _, cached = assert_cold(cold, server, prompt)
            assert cached > 0
            assert "blocks are there again" in server.log()


def test_a_killed_server_comes_back_with_what_had_reached_the_ssd(cold, folder):
    flags = ("--ssd", folder, "--ssd-size", "32M", *QUICK)
    for seed in range(4):
        with Server("tiny-rand", *flags, wait=False) as server:
            server.wait_ready()
            for i in range(seed + 1):
                assert_cold(cold, server, tokens(i, 700))
            time.sleep(0.01 * seed)
            server.process.kill()
            server.process.wait()
            server.process.returncode = 0


def test_other_kv_types_find_nothing_of_each_other(cold, folder):
    flags = ("--ssd", folder, "--ssd-size", "32M")
    prompt = tokens(3, 3000)
    with Server("tiny-rand", *flags) as server:
        ask(server, prompt)
    with Server("tiny-rand", *flags, "--kv-type", "bf16") as server:
        assert ask(server, prompt)[2] == 0


def test_a_model_with_qk_norm_wakes_as_it_slept_and_none_without_it_finds_that(tmp_path, folder):
    config = {"max_position_embeddings": 8192}
    path = variant(tmp_path / "m", "tiny-qwen3", config)
    other = variant(tmp_path / "other", "tiny-qwen3",  # the same tensors, of which it ignores some
                    {**config, "architectures": ["LlamaForCausalLM"], "model_type": "llama"})
    flags = ("--ssd", folder, "--ssd-size", "64M")
    prompt = tokens(3, 3000)
    with Server(path) as cold:
        with Server(path, *flags) as server:
            assert_cold(cold, server, prompt)
        with Server(path, *flags) as server:
            assert assert_cold(cold, server, prompt)[1] > 0
    with Server(other, *flags) as server:
        assert ask(server, prompt)[2] == 0


def test_a_second_server_may_not_have_the_folder(folder):
    flags = ("--ssd", folder, "--ssd-size", "1M")
    with Server("tiny-rand", *flags):
        with pytest.raises(RuntimeError, match="ended with 1"):
            Server("tiny-rand", *flags)
