"""Other people's clients, unchanged, each in a process of the environment that has them."""
import os
import subprocess

import pytest

PYTHON = "build/venv-clients/bin/python"
needs_clients = pytest.mark.skipif(not os.path.exists(PYTHON),
                                   reason=f"{PYTHON} does not exist; `make test` makes it")


def run(code, server, **env):
    done = subprocess.run([PYTHON, "-c", code, server.base + "/v1"], capture_output=True, text=True,
                          timeout=300, env={**os.environ, "OPENAI_API_KEY": "none", **env})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_clients
def test_litellm_chats_and_streams(tiny_abc):
    out = run("""
import sys, litellm
litellm.suppress_debug_info = True
ask = dict(model="openai/tiny-abc", api_base=sys.argv[1], api_key="none", max_tokens=6,
           messages=[{"role": "user", "content": "x"}])
print(litellm.completion(**ask).choices[0].message.content)
print("".join(c.choices[0].delta.content or "" for c in litellm.completion(stream=True, **ask)))
""", tiny_abc, LITELLM_LOCAL_MODEL_COST_MAP="True")
    assert out.split() == ["ABCDEF", "ABCDEF"]


@needs_clients
def test_langchain_openai_chats_and_streams(tiny_abc):
    out = run("""
import sys
from langchain_openai import ChatOpenAI
chat = ChatOpenAI(model="tiny-abc", base_url=sys.argv[1], api_key="none", max_tokens=6)
print(chat.invoke("x").content)
print("".join(c.content for c in chat.stream("x")))
""", tiny_abc)
    assert out.split() == ["ABCDEF", "ABCDEF"]


@needs_clients
def test_the_llm_command_talks_to_it(tiny_abc, tmp_path):
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: abc\n  model_name: tiny-abc\n  api_base: {tiny_abc.base}/v1\n")
    command = [os.path.join(os.path.dirname(PYTHON), "llm"), "-m", "abc", "-o", "max_tokens", "6", "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={
        **os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "ABCDEF"
