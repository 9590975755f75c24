"""Sockets and bytes, for what no client library would send."""
import socket
import time


def connect(server, timeout=10, receive_buffer=None):
    s = socket.socket()
    if receive_buffer:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    s.settimeout(timeout)
    s.connect(("127.0.0.1", server.port))
    return s


def post(body, path="/v1/chat/completions", extra=""):
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{extra}\r\n").encode() + body


def read_all(s, seconds=10):
    """Everything until the server closes, or nothing more comes for so long."""
    got = b""
    s.settimeout(seconds)
    try:
        while True:
            some = s.recv(65536)
            if not some:
                return got
            got += some
    except (TimeoutError, ConnectionError):
        return got


def exchange(server, data, seconds=3):
    with connect(server) as s:
        try:
            s.sendall(data)
        except ConnectionError:
            pass  # the answer came before all was sent
        return read_all(s, seconds)


def statuses(answer):
    """The status codes of all responses in these bytes."""
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


def wait_for(condition, seconds=10):
    """Poll until condition() is true; answers whether it became so."""
    end = time.time() + seconds
    while time.time() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()
