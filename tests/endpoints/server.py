"""A server on loopback with scripted replies, failures included."""

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What goes back.

    `body` is sent as JSON, bytes as they are. `wait` seconds pass before. `drop` closes the
    connection "before" the answer or "within" it. `endless` repeats the body until the client goes
    away, "stated" under a length of 3 GB or "chunked". `pause` seconds pass before each byte, of
    the head too.
    """

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = {}  # noqa: RUF012
    wait: float = 0.0
    drop: str = ""
    endless: str = ""
    pause: float = 0.0


class Seen(NamedTuple):
    path: str
    body: Any
    headers: dict[str, str]


Behaviour = Callable[[str, Any, int], Answer]


class Server:
    """Answers `behave(path, body, attempt)`; attempts at the same body count from 1."""

    def __init__(self, behave: Behaviour) -> None:
        self.seen: list[Seen] = []
        self.most_in_flight = 0
        self.n_sent = 0  # bytes of endless answers
        self._in_flight = 0
        self._attempts: Counter[str] = Counter()
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                body = json.loads(raw)
                with server._lock:
                    server.seen.append(Seen(self.path, body, dict(self.headers)))
                    server._attempts[raw.decode()] += 1
                    attempt = server._attempts[raw.decode()]
                    server._in_flight += 1
                    server.most_in_flight = max(server.most_in_flight, server._in_flight)
                try:
                    answer = behave(self.path, body, attempt)
                    time.sleep(answer.wait)
                finally:
                    with server._lock:
                        server._in_flight -= 1
                self._send(answer)

            def _send(self, answer: Answer) -> None:
                payload = answer.body
                if not isinstance(payload, bytes):
                    payload = json.dumps(payload).encode()
                if answer.endless:
                    self._repeat(answer)
                elif answer.pause:
                    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(payload)}\r\n\r\n"
                    for byte in head.encode() + payload:
                        time.sleep(answer.pause)
                        self.wfile.write(bytes([byte]))
                elif answer.drop != "before":
                    self.send_response(answer.status)
                    for name, value in answer.headers.items():
                        self.send_header(name, value)
                    more = 100 if answer.drop else 0
                    self.send_header("Content-Length", str(len(payload) + more))
                    self.end_headers()
                    self.wfile.write(payload)
                if answer.drop:
                    self.wfile.flush()
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True

            def _repeat(self, answer: Answer) -> None:
                self.send_response(answer.status)
                if answer.endless == "stated":
                    self.send_header("Content-Length", str(3 * 10**9))
                else:
                    self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                part = answer.body
                if answer.endless == "chunked":
                    part = b"%x\r\n%b\r\n" % (len(part), part)
                while True:
                    self.wfile.write(part)
                    server.n_sent += len(part)

            def log_message(self, *_: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_: Any) -> None:  # a client that has gone
                pass

        self._http = Quiet(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    def __enter__(self) -> "Server":
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
