#!/usr/bin/env python3
"""bench_lookup.py SERVER MODEL - what prompt lookup makes of replies that repeat their prompt, and
of those that do not.

Two servers over the same model, one with --prompt-lookup and one without, answer the same requests
in turns: a contract's clause to be copied, and a story; one reply alone and several at once.
Printed are tokens/s from the first token of a reply to its end, the ratio of the two medians, and
the share of drafts that came true.  That the answers are the same is checked.
"""
import argparse
import os
import re
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "e2e"))

CLAUSE = """
7.2 The Supplier shall deliver the Goods to the place named in the Order within thirty (30) days
after the Order has been confirmed in writing. Where the Supplier becomes aware that a delivery will
be late, it shall inform the Customer without delay of the reason and of the new date. If the Goods
have not been delivered within sixty (60) days after the agreed date, the Customer may withdraw from
the Order in whole or in part, and the Supplier shall refund all sums paid for Goods that have not
been delivered, together with interest at two per cent (2 %) above the base rate. The rights of the
Customer under this clause are in addition to those that it has by law. Neither party is liable for
a delay that is caused by an event beyond its reasonable control, as long as it informs the other
party of the event within five (5) days after it has become aware of it.
"""
COPY = {"prompt": f"The clause as signed:\n{CLAUSE}\nThe same clause, copied word for word:\n7.2 The "
                  "Supplier shall deliver",
        "temperature": 0}
STORY = {"prompt": "The lighthouse keeper had not spoken to anyone since the autumn storms, and on the "
                   "morning when the boat came he",
         "temperature": 1, "seed": 7}


def options():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("server")
    p.add_argument("model")
    p.add_argument("--drafts", type=int, default=8, help="of --prompt-lookup")
    p.add_argument("--reply", type=int, default=160, help="tokens of each reply")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--at-once", default="1,4,8", help="numbers of replies")
    p.add_argument("--flags", default="", help="more of both servers' own, separated by blanks")
    return p.parse_args()


def reply(server, fields, out):
    """One reply: (seconds from the first token to the end, the text)"""
    first = None
    text = ""
    for e in server.events("/v1/completions", **fields):
        if first is None:
            first = time.monotonic()
        if e != "[DONE]":
            text += "".join(c["text"] for c in e["choices"])
    out.append((time.monotonic() - first, text))


def replies(server, fields, o, n):
    """n at once, which differ by their seeds -> (tokens/s of them all, their texts)"""
    out = [[] for _ in range(n)]
    threads = [threading.Thread(target=reply, args=(
        server, {**fields, "seed": 7 + i, "max_tokens": o.reply, "ignore_eos": True}, out[i]))
        for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    seconds = statistics.mean(x[0][0] for x in out)
    return n * (o.reply - 1) / seconds, [x[0][1] for x in out]


def drafts(server):
    """-> (drafted, accepted) so far"""
    _, _, body = server.request("GET", "/metrics")
    return [int(re.search(rf"num_{k}_tokens_total{{.*}} (\d+)", body.decode()).group(1))
            for k in ("draft", "accepted")]


def compare(o, plain, lookup, name, fields, n):
    rates = {plain: [], lookup: []}
    before = drafts(lookup)
    for _ in range(o.rounds):
        texts = []
        for server in (plain, lookup):
            rate, said = replies(server, fields, o, n)
            rates[server].append(rate)
            texts.append(said)
        if texts[0] != texts[1]:
            sys.exit(f"bench_lookup: {name}: the answers differ:\n{texts[0]}\n{texts[1]}")
    drafted, accepted = (b - a for a, b in zip(before, drafts(lookup)))
    off, on = (statistics.median(rates[s]) for s in (plain, lookup))
    share = f"{100 * accepted / drafted:.0f} % of {drafted}" if drafted else "none"
    print(f"{name:6} {n:3} at once  {off:7.1f} tokens/s without  {on:7.1f} with  {on / off:5.2f}x"
          f"  drafts that came true: {share}", flush=True)


def main():
    o = options()
    os.environ["DORMOUSE"] = o.server
    from server import Server
    flags = o.flags.split()
    with Server(o.model, *flags) as plain, \
            Server(o.model, *flags, "--prompt-lookup", str(o.drafts)) as lookup:
        print(re.search(r"prompt lookup: (.*)", lookup.log()).group(1))
        for n in map(int, o.at_once.split(",")):
            for name, fields in (("copy", COPY), ("story", STORY)):
                compare(o, plain, lookup, name, fields, n)


main()
