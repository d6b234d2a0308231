"""A run's page on this machine, kept up to date while the run goes on; no torch.

It listens on the loopback address, and only reads. Every request needs the random token in the
address, which other users of the machine and other pages cannot guess.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gradscope import pages
from gradscope.api.reading import read_history
from gradscope.errors import ConfigError
from gradscope.pages import Page
from gradscope.records.training import RunHistory
from gradscope.runfile.reader import RunFile

_HOST = "127.0.0.1"
#: Seconds between reads of the run, and the share of the time for reading and drawing.
_PAUSE, _SHARE = 1.0, 0.25
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the token is a part of the address
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class RunServer(ThreadingHTTPServer):
    """Serves one run.

    Args:
        path: the run's file or folder.
        page: makes the page from the run.

    Raises:
        OSError: there is no free port.
    """

    daemon_threads = True

    def __init__(self, path: Path, page: Callable[[RunHistory], Page]) -> None:
        super().__init__((_HOST, 0), _Handler)
        self._path, self._page = path, page
        self.token = secrets.token_urlsafe(24)
        self.ending = threading.Event()

    @property
    def address(self) -> str:
        """Address to open in a browser."""
        return f"http://{_HOST}:{self.server_port}/{self.token}/"

    def close(self) -> None:
        """Stop serving; called from another thread."""
        self.ending.set()
        self.shutdown()
        self.server_close()

    def texts(self) -> Iterator[str | None]:
        """Yield the page now and after each change, else None, until the run has ended.

        Raises:
            ConfigError: the run is gone or damaged.
        """
        with RunFile.open(self._path) as run:
            history, shown = read_history(run, calls=True), None
            while not self.ending.is_set():
                began, state = time.monotonic(), _state(history)
                text = pages.render(self._page(history), live=True) if state != shown else None
                shown = state
                yield text
                if history.run.ended is not None:
                    return
                took = time.monotonic() - began
                self.ending.wait(max(_PAUSE, took / _SHARE - took))
                history = read_history(run, calls=True, before=history)


def _state(history: RunHistory) -> tuple[object, ...]:
    """Return a state that changes with each write to the run."""
    last = history.steps[-1].step if history.steps else 0
    return last, history.sampled, len(history.events), history.findings, history.run.ended


class _Handler(BaseHTTPRequestHandler):
    server: RunServer

    def version_string(self) -> str:
        """Return the server's name for headers, without Python's version."""
        return "gradscope"

    def do_GET(self) -> None:
        head, slash, name = self.path.removeprefix("/").partition("/")
        known = secrets.compare_digest(head.encode(), self.server.token.encode())
        port = self.server.server_port
        if not known or self.headers.get("Host") not in (f"{_HOST}:{port}", f"localhost:{port}"):
            self.send_error(404)
        elif slash and name == "":
            self._send_page()
        elif name == "events":
            self._send_events()
        else:
            self.send_error(404)

    def _send_page(self) -> None:
        try:
            content = next(self.server.texts(), None)
        except ConfigError as error:
            self.send_error(500, explain=str(error))
            return
        data = (content or "").encode("utf-8", "backslashreplace")
        self._begin("text/html; charset=utf-8", {"Content-Length": str(len(data))})
        self.wfile.write(data)

    def _send_events(self) -> None:
        """Send server-sent events:
        https://html.spec.whatwg.org/multipage/server-sent-events.html
        """
        self._begin("text/event-stream", {})
        try:
            for text in self.server.texts():
                if text is None:
                    self.wfile.write(b":\n\n")  # to notice that the browser has left
                else:
                    self.wfile.write(f"event: page\ndata: {json.dumps(text)}\n\n".encode())
                self.wfile.flush()
            self.wfile.write(b"event: ended\ndata: 1\n\n")
        except (OSError, ConfigError):  # the browser has left, or the run is gone
            self.close_connection = True

    def _begin(self, kind: str, more: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {"Content-Type": kind, **_HEADERS, **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing for a request."""
