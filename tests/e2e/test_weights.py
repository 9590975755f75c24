"""How weights are kept: every format answers, a second start is spared the packing, and no
conversation of one format is continued in another."""
import os
import shutil

import pytest

from server import Server, model_dir
from sleepers import kept

PROMPT = "the quick brown fox jumps over the lazy dog " * 12


def found(server):
    status, answer = server.post("/v1/completions", prompt=PROMPT, max_tokens=4, temperature=0)
    assert status == 200, answer
    return kept(answer["usage"])


@pytest.mark.parametrize("weights", ["auto", "bf16", "q8", "q4"])
def test_a_model_answers_in_every_weight_format(weights):
    with Server("tiny-rand", "--weights", weights) as server:
        assert len(server.text("hello", max_tokens=8, temperature=0)) > 0
        assert f"kept as {'bf16' if weights == 'auto' else weights}" in server.log()


@pytest.mark.parametrize("weights", ["auto", "q8"])
def test_a_second_start_takes_what_the_first_has_packed(tmp_path, weights):
    path = str(tmp_path / "model")
    shutil.copytree(model_dir("tiny-rand"), path)
    flags = ("--weights", weights, "--packed-cache=true")
    texts = []
    for says in ("written for the next start", "packed weights from", "packed weights from"):
        with Server(path, *flags) as server:
            texts.append(server.text("hello", max_tokens=12, temperature=0))
            assert says in server.log()
    assert texts[0] == texts[1] == texts[2]
    assert os.path.exists(os.path.join(path, f"dormouse-{weights}.packed"))


def test_blocks_of_another_weight_format_are_not_found(tmp_path):
    flags = ("--ssd", str(tmp_path / "kv"), "--ssd-size", "64M")
    with Server("tiny-rand", *flags, "--weights", "q8") as server:
        assert found(server) == 0
    with Server("tiny-rand", *flags, "--weights", "q8") as server:
        assert found(server) > 0
    with Server("tiny-rand", *flags, "--weights", "q4") as server:
        assert found(server) == 0
