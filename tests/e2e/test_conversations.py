"""Conversations by name: they sleep, wake, survive a restart, and everything adds up."""
import json
import signal
import threading

import pytest

from raw import wait_for
from server import Server, collect, together

CHAT = "/v1/chat/completions"
TIERS = ("device", "ram", "ssd")
KEYS = {"ada": "a" * 20 + "-ada", "bea": "b" * 20 + "-bea"}


def tiers(tmp_path, *flags, kv_blocks=64):
    """A pool of a few conversations over 64 MiB of each tier."""
    return ("--ram", "64M", "--ssd", str(tmp_path / "ssd"), "--ssd-size", "64M",
            "--kv-blocks", str(kv_blocks), "--copy-after", "50ms", "--ssd-after", "50ms",
            "--idle-after", "200ms", *flags)


def words(seed, n=60):
    return " ".join(f"{seed}w{seed * i % 97}" for i in range(n))


USER = [{"role": "user", "content": words(3)}]


def talk(server, name, seed, headers=None, **fields):
    """-> the answer of a chat under that name."""
    body = {"messages": [{"role": "user", "content": words(seed, fields.pop("n", 60))}],
            "temperature": 0, "max_tokens": 6, **fields}
    status, _, answer = server.request(
        "POST", CHAT, body, {"X-Conversation-Id": name, **(headers or {})})
    assert status == 200, answer
    return json.loads(answer)


def ask(server, method, path, headers=None):
    status, _, body = server.request(method, "/v1/conversations" + path, headers=headers)
    return status, json.loads(body)


def state(server, name):
    return ask(server, "GET", "/" + name)[1].get("state")


def adds_up(answer):
    """The prompt's tokens, by where they came from; they are all there."""
    usage = answer["usage"]
    told = usage["dormouse"]
    cached = sum(told["tokens"].values())
    assert cached == usage["prompt_tokens_details"]["cached_tokens"]
    assert cached + sum(told["computed"].values()) == usage["prompt_tokens"]
    assert cached % 16 == 0 and cached < usage["prompt_tokens"]
    return told["tokens"]


def text_of(answer):
    return answer["choices"][0]["message"]["content"]


def test_a_conversation_wakes_from_each_tier_with_the_same_answer(tmp_path, tiny_rand):
    cold = text_of(talk(tiny_rand, "cold", 7))
    flags = tiers(tmp_path)
    with Server("tiny-rand", *flags) as server:
        first = talk(server, "one", 7)
        assert first["usage"]["dormouse"]["woken_from"] is None and text_of(first) == cold
        second = talk(server, "one", 7)
        assert second["usage"]["dormouse"]["woken_from"] == "device" and text_of(second) == cold
        assert adds_up(second)["device"] > 0

        assert wait_for(lambda: ask(server, "GET", "/one")[1]["bytes"]["ssd"] > 0)
        assert ask(server, "POST", "/one/sleep")[0] == 200
        assert wait_for(lambda: state(server, "one") == "asleep")
        third = talk(server, "one", 7)
        assert third["usage"]["dormouse"]["woken_from"] == "ram" and text_of(third) == cold
        assert third["usage"]["dormouse"]["promoted_bytes"] > 0 and adds_up(third)["ram"] > 0
    for _ in range(10):  # where the disk is slow for a moment, computing is quicker, and chosen
        with Server("tiny-rand", *flags) as server:
            last = talk(server, "one", 7)
            assert text_of(last) == cold
            metrics = server.metrics()
        if adds_up(last)["ssd"] > 0:
            break
        assert last["usage"]["dormouse"]["computed"]["new"] < last["usage"]["prompt_tokens"]
    assert last["usage"]["dormouse"]["woken_from"] == "ssd"
    assert metrics['dormouse_wake_seconds_count{model_name="tiny-rand",tier="ssd"}'] == 1


def test_a_wake_ahead_of_the_message_leaves_nothing_to_load(tmp_path):
    with Server("tiny-rand", *tiers(tmp_path)) as server:
        talk(server, "one", 5)
        assert wait_for(lambda: state(server, "one") == "asleep")
        assert ask(server, "POST", "/one/hold?ttl=60")[1]["held_until"] is not None
        assert ask(server, "POST", "/one/wake")[0] == 200
        assert wait_for(lambda: state(server, "one") == "idle")
        answer = talk(server, "one", 5)
        assert answer["usage"]["dormouse"]["woken_from"] == "device"
        assert answer["usage"]["dormouse"]["promoted_bytes"] == 0


def test_deleting_takes_the_bytes_out_of_every_tier(tmp_path):
    with Server("tiny-rand", *tiers(tmp_path)) as server:
        talk(server, "one", 3)
        assert wait_for(lambda: ask(server, "GET", "/one")[1]["bytes"]["ssd"] > 0)
        assert server.metrics_sum("dormouse_tier_used_bytes") > 0
        assert ask(server, "DELETE", "/one") == (
            200, {"id": "one", "object": "conversation.deleted", "deleted": True})
        assert wait_for(lambda: server.metrics_sum("dormouse_tier_used_bytes") == 0)
        assert ask(server, "GET", "/one")[0] == 404
        assert ask(server, "DELETE", "/one")[0] == 404
        assert server.metrics_sum("dormouse_conversations") == 0
        assert talk(server, "one", 3)["usage"]["dormouse"]["woken_from"] is None


def test_what_was_deleted_is_not_there_after_a_kill(tmp_path):
    flags = tiers(tmp_path, kv_blocks=512)
    server = Server("tiny-rand", *flags)
    talk(server, "kept", 5)
    talk(server, "gone", 3, n=800)
    assert wait_for(lambda: state(server, "kept") == "asleep")
    assert wait_for(lambda: state(server, "gone") == "asleep")
    lies = ask(server, "GET", "/gone")[1]["bytes"]
    assert lies["ssd"] == lies["ram"] > 0
    assert ask(server, "DELETE", "/gone")[0] == 200
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    with Server("tiny-rand", *flags) as server:
        assert [c["id"] for c in ask(server, "GET", "")[1]["data"]] == ["kept"]
        assert adds_up(talk(server, "gone", 3, n=800)) == dict.fromkeys(TIERS, 0)


def kill(server):
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()


def listed(server):
    return {c["id"] for c in ask(server, "GET", "")[1]["data"]}


def test_two_names_that_end_with_one_block_are_there_after_a_kill_until_deleted(tmp_path):
    flags, table = tiers(tmp_path), tmp_path / "ssd" / "names"

    def written(name):
        return name.encode() + b"\0" in table.read_bytes()

    server = Server("tiny-rand", *flags)
    for name in ("one", "two"):
        talk(server, name, 3)
        assert wait_for(lambda: written(name))
    kill(server)
    server = Server("tiny-rand", *flags)
    assert listed(server) == {"one", "two"}
    sizes = [ask(server, "GET", "/" + name)[1]["bytes"]["ssd"] for name in ("one", "two")]
    assert sizes[0] == sizes[1] > 0
    assert ask(server, "DELETE", "/one")[0] == 200
    assert not written("one") and written("two")
    kill(server)
    with Server("tiny-rand", *flags) as server:
        assert listed(server) == {"two"}
        assert ask(server, "GET", "/two")[1]["bytes"]["ssd"] == sizes[1]
        assert ask(server, "DELETE", "/two")[0] == 200
    with Server("tiny-rand", *flags) as server:
        assert listed(server) == set()
        assert adds_up(talk(server, "one", 3)) == dict.fromkeys(TIERS, 0)


def test_a_name_goes_on_to_what_it_said_last_through_a_stop(tmp_path):
    flags = tiers(tmp_path)
    body = {"messages": USER, "temperature": 0, "max_tokens": 40}
    with Server("tiny-rand", *flags) as server:
        for turn in range(2):
            headers = {"X-Conversation-Id": "one"}
            answer = json.loads(server.request("POST", CHAT, body, headers)[2])
            body["messages"] = [*body["messages"], answer["choices"][0]["message"],
                                {"role": "user", "content": words(5)}]
        tokens = ask(server, "GET", "/one")[1]["tokens"]
    with Server("tiny-rand", *flags) as server:
        assert listed(server) == {"one"}
        assert ask(server, "GET", "/one")[1]["tokens"] == tokens


def test_a_hold_is_refused_where_others_could_not_work_beside_it(tmp_path):
    with Server("tiny-rand", "--ssd", str(tmp_path / "ssd"), "--ssd-size", "64M",
                "--kv-blocks", "64") as server:
        small = talk(server, "small", 3, n=20)["usage"]["total_tokens"]
        large = talk(server, "large", 5, n=110)["usage"]["total_tokens"]
        assert small + 16 < 32 * 16 < large < 64 * 16
        assert ask(server, "POST", "/small/hold?ttl=600")[1]["held_until"] is not None
        status, answer = ask(server, "POST", "/large/hold?ttl=600")
        assert status == 409 and answer["error"]["code"] == "too_much_held"
        assert "512 tokens" in answer["error"]["message"]
        assert ask(server, "POST", "/small/hold?ttl=0")[1]["held_until"] is None


def test_what_is_asked_of_an_active_conversation_is_refused(tmp_path):
    with Server("tiny-rand", *tiers(tmp_path, kv_blocks=640)) as server:
        frames = server.events(messages=USER, max_tokens=8000, ignore_eos=True,
                               prompt_cache_key="one")
        next(frames)
        assert state(server, "one") == "active"
        for method, path in (("DELETE", "/one"), ("POST", "/one/sleep")):
            status, answer = ask(server, method, path)
            assert status == 409 and answer["error"]["code"] == "conversation_active"
        frames.close()
        assert wait_for(lambda: ask(server, "DELETE", "/one")[0] == 200)


def test_tenants_do_not_see_each_others_conversations(tmp_path):
    path = tmp_path / "keys"
    path.write_text("".join(f"{t} {k}\n" for t, k in KEYS.items()))
    path.chmod(0o600)
    ada, bea = ({"Authorization": f"Bearer {k}"} for k in KEYS.values())
    with Server("tiny-rand", *tiers(tmp_path, "--keys", str(path))) as server:
        assert talk(server, "one", 3, ada)["usage"]["dormouse"]["conversation"] == "one"
        assert adds_up(talk(server, "one", 3, bea)) == dict.fromkeys(TIERS, 0)
        assert ask(server, "DELETE", "/one", bea)[0] == 200
        assert ask(server, "GET", "/one", ada)[0] == 200
        for method, what in (("GET", "/one"), ("DELETE", "/one"), ("POST", "/one/wake"),
                             ("POST", "/one/sleep"), ("POST", "/one/hold?ttl=9")):
            assert ask(server, method, what, bea)[0] == 404
        assert ask(server, "GET", "", bea)[1]["data"] == []
        assert [c["id"] for c in ask(server, "GET", "", ada)[1]["data"]] == ["one"]
        assert adds_up(talk(server, "one", 3, ada))["device"] > 0
        assert "one" not in [w for line in server.log().splitlines() for w in line.split("=")]


def test_the_list_comes_in_pages(tmp_path):
    with Server("tiny-rand", *tiers(tmp_path)) as server:
        for i in range(25):
            talk(server, f"c{i}", i + 1, n=20)
        seen, after = [], ""
        while True:
            status, page = ask(server, "GET", "?limit=4" + after)
            assert status == 200 and page["object"] == "list" and len(page["data"]) <= 4
            seen += [c["id"] for c in page["data"]]
            assert page["last_id"] == seen[-1]
            if not page["has_more"]:
                break
            after = "&after=" + page["last_id"]
        assert seen == [f"c{i}" for i in reversed(range(25))]


def test_computed_and_cached_tokens_add_up_over_a_hundred_returns(tmp_path):
    """Whatever went where: usage and metrics tell the same, and no counter goes down."""
    with Server("tiny-rand", *tiers(tmp_path)) as server:
        seen, stop, fell = {}, threading.Event(), []

        def scrape():
            while not stop.is_set():
                now = server.metrics()
                fell.extend(k for k, v in seen.items()
                            if "_total{" in k and now.get(k, 0) < v)
                fell.extend(k for k, v in now.items() if v < 0)
                seen.update(now)
        scraper = threading.Thread(target=scrape)
        scraper.start()
        jobs = [lambda i=i: talk(server, f"c{i % 20}", i % 20 + 1) for i in range(120)]
        try:
            answers = together(jobs, 6)
        finally:
            stop.set()
            scraper.join()
        assert not fell
        sums = dict.fromkeys(TIERS, 0)
        for answer in answers:
            for tier, n in adds_up(answer).items():
                sums[tier] += n
        metrics = server.metrics()
        for tier in TIERS:
            key = f'dormouse_cached_prompt_tokens_total{{model_name="tiny-rand",tier="{tier}"}}'
            assert metrics[key] == sums[tier]
        prompt = sum(a["usage"]["prompt_tokens"] for a in answers)
        assert server.metrics_sum("dormouse_prompt_tokens_total") == prompt
        assert server.metrics_sum("dormouse_computed_prompt_tokens_total") == \
            prompt - sum(sums.values())
        assert server.metrics_sum("dormouse_num_sequences_waking") == 0
        texts = {}
        for i, answer in enumerate(answers):
            assert texts.setdefault(i % 20, text_of(answer)) == text_of(answer)


def test_a_server_without_names_still_tells_the_one_it_made(tmp_path):
    with Server("tiny-rand", *tiers(tmp_path)) as server:
        status, answer = server.chat(words(3), max_tokens=2)
        name = answer["usage"]["dormouse"]["conversation"]
        assert status == 200 and ask(server, "GET", "/" + name)[0] == 200
        for odd in ("a b", "x" * 64, "caf\u00e9"):
            status, answer = server.chat(words(3), max_tokens=2, prompt_cache_key=odd)
            name = answer["usage"]["dormouse"]["conversation"]
            assert status == 200 and name.startswith("key-")
            assert ask(server, "GET", "/" + name)[0] == 200
        assert server.chat("x", prompt_cache_key="", max_tokens=2)[0] == 200
        status, answer = server.chat("x", prompt_cache_key=7)
        assert status == 400 and answer["error"]["param"] == "prompt_cache_key"


def test_a_stream_tells_it_in_its_usage_frame(tmp_path):
    with Server("tiny-rand", *tiers(tmp_path)) as server:
        talk(server, "one", 3)
        frames = list(server.events(messages=USER, max_tokens=6, temperature=0,
                                    stream_options={"include_usage": True}))
        told = [f for f in frames if f != "[DONE]" and f.get("usage")]
        assert told == [frames[-2]] and told[0]["choices"] == []
        assert adds_up(told[0])["device"] > 0
        assert collect(frames)["done"]


def test_questions_are_answered_beside_streams_and_refused_at_the_end(tmp_path):
    server = Server("tiny-rand", *tiers(tmp_path, "--drain", "20s", kv_blocks=640))
    frames = server.events(messages=USER, max_tokens=4000, ignore_eos=True)
    next(frames)
    answers = together([lambda: ask(server, "GET", "")[0] for _ in range(60)], 12)
    assert set(answers) <= {200, 503} and answers.count(200) > 0
    server.process.send_signal(signal.SIGTERM)
    refused = wait_for(lambda: ask(server, "GET", "")[0] == 503)
    assert refused
    frames.close()
    assert server.process.wait(60) == 0


@pytest.mark.parametrize("method,path,allow", [
    ("POST", "", "GET, HEAD"), ("PUT", "/a", "GET, HEAD, DELETE"), ("GET", "/a/wake", "POST")])
def test_wrong_methods_are_told_the_right_ones(tiny_abc, method, path, allow):
    status, headers, _ = tiny_abc.request(method, "/v1/conversations" + path)
    assert status == 405 and headers["Allow"] == allow
