"""Streams beside other requests, seen by one thread that does next to nothing else.

The client shares the machine with the server, so what it costs is part of what it measures: requests
are built beforehand, sockets are read as bytes, and everything is parsed when all is over.
"""
import json
import selectors
import socket
import time

TOKEN = b'"finish_reason":null'  # once in every frame that brings a token


def request_bytes(method, path, body=None, name=None):
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    if name:
        head += f"X-Conversation-Id: {name}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


class Exchange:
    """One request and what came back, piece by piece."""

    def __init__(self, port, request):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.sent = time.monotonic()
        self.socket.sendall(request)
        self.pieces, self.times, self.tokens = [], [], 0

    def take(self):
        """False at the end."""
        piece = self.socket.recv(65536)
        self.times.append(time.monotonic())
        self.pieces.append(piece)
        self.tokens += piece.count(TOKEN)
        if not piece:
            self.socket.close()
        return bool(piece)

    @property
    def ended(self):
        return self.times[-1]

    def answer(self):
        head, _, body = b"".join(self.pieces).partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{head[:60]!r}: {body[:300]!r}")
        return body

    def gaps(self):
        """[(from, to)] between tokens.  Tokens that come together have no gap between them."""
        out, last = [], None
        for piece, at in zip(self.pieces, self.times):
            for _ in range(piece.count(TOKEN)):
                if last is not None:
                    out.append((last, at))
                last = at
        return out


def together(port, streams, begun, others=(), asked=None):
    """Send the streams; when each has brought `begun` tokens, send the others at once.
    -> (gaps from then on, gaps until the others were over, seconds until then, the others)

    asked: a request to be repeated, and what its answer contains when the others are over;
    where it is missing, they are over when all of them are answered."""
    watch = selectors.DefaultSelector()

    def send(request):
        x = Exchange(port, request)
        watch.register(x.socket, selectors.EVENT_READ, x)
        return x

    running = [send(s) for s in streams]
    fired, waiting, sent, over, question, ask_at = [], set(), None, None, None, None
    while len(watch.get_map()) > 0:
        for key, _ in watch.select(0.02):
            x = key.data
            if not x.take():
                watch.unregister(x.socket)
                waiting.discard(x)
                if x is question:
                    if asked[1] in x.answer():
                        over = x.ended
                    question, ask_at = None, time.monotonic() + 0.02
        if sent is None and all(x.tokens >= begun for x in running):
            sent = time.monotonic()
            fired = [send(r) for r in others]
            waiting = set(fired)
            ask_at = sent
        if fired and over is None and not waiting:
            if not asked:
                over = max(x.ended for x in fired)
            elif question is None and time.monotonic() >= ask_at:
                question = send(asked[0])
    gaps = [g for x in running for g in x.gaps() if g[0] >= sent]
    until = max(g[1] for g in gaps) if over is None else over
    for x in fired + running:
        x.answer()
    return ([b - a for a, b in gaps], [b - a for a, b in gaps if a < until], until - sent, fired)
