#!/usr/bin/env python3
"""replay.py URL [options] - conversations that come back, against any OpenAI server.

Each conversation is a client of its own: it asks, reads the streamed reply, thinks, and asks
again with the whole history before it.  Printed are, over the turns that return: time to first
token, time between tokens, tokens of the prompt found and computed; as a table, and with
--json FILE as JSON.  Standard library only.
"""
import argparse
import http.client
import json
import random
import sys
import threading
import time
import urllib.parse

WORDS = ("river stone garden winter lantern market silver window engine forest harbour "
         "letter morning travel bridge candle mountain village music orchard paper "
         "quiet station thunder valley wagon yellow anchor butter copper").split()


def message(words, name):
    choose = random.Random(name)
    return " ".join(choose.choice(WORDS) for _ in range(words)) + "?"


class Turn:
    """One request and what came of it; times in seconds."""

    def __init__(self, conversation, number):
        self.conversation, self.number = conversation, number
        self.text, self.first, self.between = "", None, []
        self.prompt = self.cached = self.completion = None
        self.error = None


def lines_of(response):
    rest = b""
    while some := response.read1(65536):
        rest += some
        *whole, rest = rest.split(b"\n")
        for line in whole:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def take_frame(turn, frame, clock):
    """Note what a frame of the stream says; -> the time of its token, or None."""
    if "error" in frame:
        turn.error = json.dumps(frame["error"])
    usage = frame.get("usage")
    if usage:
        turn.prompt = usage["prompt_tokens"]
        turn.completion = usage["completion_tokens"]
        turn.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    piece = "".join((c.get("delta") or {}).get("content") or "" for c in frame["choices"]
                    ) if frame.get("choices") else ""
    turn.text += piece
    return clock if piece else None


def ask(target, turn, messages, o):
    body = {"model": o.model, "messages": messages, "stream": True, "temperature": 0,
            "max_tokens": o.tokens, "stream_options": {"include_usage": True},
            "ignore_eos": True}
    headers = headers_of(o)
    if o.name:
        headers["X-Conversation-Id"] = f"replay-{turn.conversation}"
    connection = open_to(target)
    began = time.monotonic()
    try:
        connection.request("POST", path_in(target, "/chat/completions"), json.dumps(body),
                           headers)
        response = connection.getresponse()
        if response.status != 200:
            turn.error = f"{response.status} {response.read(500).decode('utf-8', 'replace')}"
            return
        last = None
        for data in lines_of(response):
            if data == b"[DONE]":
                break
            at = take_frame(turn, json.loads(data), time.monotonic())
            if at is None:
                continue
            if last is None:
                turn.first = at - began
            else:
                turn.between.append(at - last)
            last = at
    except OSError as e:
        turn.error = str(e)
    finally:
        connection.close()


def open_to(target):
    return http.client.HTTPConnection(target.hostname, target.port or 80, timeout=600)


def path_in(target, path):
    return (target.path.rstrip("/") or "/v1") + path


def headers_of(o):
    key = {"Authorization": f"Bearer {o.key}"} if o.key else {}
    return {"Content-Type": "application/json", "Connection": "close", **key}


def first_model(target, o):
    connection = open_to(target)
    connection.request("GET", path_in(target, "/models"), headers=headers_of(o))
    return json.loads(connection.getresponse().read())["data"][0]["id"]


class Replay:
    def __init__(self, target, o):
        self.target, self.o, self.turns = target, o, []
        self.lock = threading.Lock()
        self.seats = threading.Semaphore(o.at_once)

    def conversation(self, c):
        choose = random.Random(f"{self.o.seed} {c}")
        time.sleep(choose.uniform(0, self.o.think))
        messages = []
        for t in range(self.o.turns):
            if t > 0:
                time.sleep(self.o.think * choose.uniform(0.5, 1.5))
            words = self.o.first_words if t == 0 else self.o.words
            messages.append({"role": "user", "content": message(words, f"{self.o.seed} {c} {t}")})
            turn = Turn(c, t)
            with self.seats:
                ask(self.target, turn, messages, self.o)
            with self.lock:
                self.turns.append(turn)
            if turn.error:
                return
            messages.append({"role": "assistant", "content": turn.text})

    def run(self):
        threads = [threading.Thread(target=self.conversation, args=(c,))
                   for c in range(self.o.conversations)]
        began = time.monotonic()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.seconds = time.monotonic() - began


def percentiles(values):
    """By the nearest rank; None where there is no value."""
    ordered = sorted(values)
    return {f"p{p}": ordered[min(len(ordered) - 1, int(p / 100 * len(ordered)))]
            if ordered else None for p in (50, 95, 99)}


def most_known(turns):
    """Tokens of each returning prompt that the server had computed the turn before."""
    by_name = {(t.conversation, t.number): t for t in turns}
    known = 0
    for t in turns:
        before = by_name.get((t.conversation, t.number - 1))
        if before and before.prompt is not None:
            known += min(before.prompt + (before.completion or 0), t.prompt or 0)
    return known


def summary(replay):
    turns = replay.turns
    good = [t for t in turns if not t.error]
    back = [t for t in good if t.number > 0 and t.first is not None]
    reports = all(t.cached is not None for t in back)
    prompt = sum(t.prompt or 0 for t in back)
    cached = sum(t.cached or 0 for t in back) if reports else None
    known = most_known(good)
    return {
        "target": replay.target.geturl(), "seconds": replay.seconds,
        "turns": len(turns), "returning": len(back), "errors": len(turns) - len(good),
        "first_error": next((t.error for t in turns if t.error), None),
        "ttft_first": percentiles([t.first for t in good if t.number == 0 and t.first]),
        "ttft_returning": percentiles([t.first for t in back]),
        "itl": percentiles([x for t in good for x in t.between]),
        "prompt_tokens": prompt, "cached_tokens": cached,
        "computed_tokens": prompt - cached if reports else None,
        "recomputed_tokens": max(0, known - cached) if reports else None,
        "known_tokens": known,
    }


def milliseconds(p):
    return "".join(f"{'-' if v is None else f'{v * 1e3:.1f}':>12}" for v in p.values())


def count(n):
    return "not told" if n is None else str(n)


def print_table(s):
    print(f"{s['target']}: {s['turns']} turns, {s['returning']} of them returning, "
          f"{s['errors']} failed, {s['seconds']:.1f} s")
    if s["first_error"]:
        print(f"first failure: {s['first_error']}")
    print(f"{'ms':24}{'p50':>12}{'p95':>12}{'p99':>12}")
    for name, key in (("TTFT, first turns", "ttft_first"),
                      ("TTFT, returning turns", "ttft_returning"),
                      ("between tokens", "itl")):
        print(f"{name:24}{milliseconds(s[key])}")
    print(f"returning prompts: {s['prompt_tokens']} tokens, {count(s['cached_tokens'])} cached, "
          f"{count(s['computed_tokens'])} computed; of {s['known_tokens']} that had been computed "
          f"before, {count(s['recomputed_tokens'])} again")


def options():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("url", help="http://HOST:PORT, or with the path before /chat/completions")
    p.add_argument("--conversations", type=int, default=24)
    p.add_argument("--turns", type=int, default=5)
    p.add_argument("--first-words", type=int, default=600, help="of a conversation's first message")
    p.add_argument("--words", type=int, default=40, help="of each later one")
    p.add_argument("--tokens", type=int, default=32, help="of each reply")
    p.add_argument("--think", type=float, default=5, help="seconds between turns, on average")
    p.add_argument("--at-once", type=int, default=4, help="most requests at one time")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--model", help="the first one that the server lists where missing")
    p.add_argument("--key", help="API key")
    p.add_argument("--name", action="store_true", help="name conversations by X-Conversation-Id")
    p.add_argument("--json", metavar="FILE")
    return p.parse_args()


def main():
    o = options()
    target = urllib.parse.urlparse(o.url)
    o.model = o.model or first_model(target, o)
    replay = Replay(target, o)
    replay.run()
    s = summary(replay)
    print_table(s)
    if o.json:
        with open(o.json, "w") as f:
            json.dump({**s, "options": {k: v for k, v in vars(o).items() if k != "key"}}, f,
                      indent=1)
    sys.exit(1 if s["errors"] else 0)


if __name__ == "__main__":
    main()
