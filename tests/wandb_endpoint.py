"""An endpoint that W&B's client takes for its server: it keeps the rows that it is sent."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_OWNER = {"id": "e", "name": "e"}
_RUN = {
    **{"id": "r", "name": "run", "displayName": "run", "description": None, "config": "{}"},
    **{"sweepName": None, "historyLineCount": 0, "stopped": False},
    "project": {"id": "p", "name": "p", "entity": _OWNER},
}
_ARTIFACT = {"id": "a", "versionIndex": 0}
#: A word of a query, and the answer to it; the first word that is there counts.
_ANSWERS: dict[str, dict[str, Any]] = {
    "upsertBucket": {"bucket": _RUN, "inserted": True},
    "createArtifact(": {
        "artifact": {
            **{"id": "a", "state": "COMMITTED"},
            "artifactSequence": {"id": "s", "latestArtifact": _ARTIFACT},
        }
    },
    "notifyScriptableRunAlert": {"success": True},
    "viewer": {
        **{"id": "u", "entity": "e", "username": "u", "flags": "{}"},
        "teams": {"edges": []},
    },
    "serverInfo": {"features": [], "cliVersionInfo": {}, "latestLocalVersionInfo": None},
}


class Endpoint:
    """What was sent: the rows of the history, and which mutations were asked for."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.address = ""

    def take(self, path: str, body: bytes) -> dict[str, Any]:
        """The answer to a request."""
        if path.endswith("/file_stream"):
            history = json.loads(body).get("files", {}).get("wandb-history.jsonl", {})
            self.rows += map(json.loads, history.get("content", ()))
            return {}
        if not path.startswith("/graphql"):
            return {}
        asked = json.loads(body)
        query: str = asked["query"]
        if "createRunFiles" in query:
            files = [
                {"name": name, "uploadUrl": f"{self.address}/files/{name}"}
                for name in asked["variables"]["files"]
            ]
            made = {"runID": "r", "uploadHeaders": [], "files": files}
            return {"data": {"createRunFiles": made}}
        for word, answer in _ANSWERS.items():
            if word in query:
                self.asked.append(word.rstrip("("))
                return {"data": {word.rstrip("("): answer}}
        return {"data": {"entity": {"organization": None}, "project": None, "model": None}}


@contextmanager
def listening() -> Iterator[Endpoint]:
    """An endpoint on a port of this machine."""
    found = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self._body()
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            data = json.dumps(found.take(self.path, body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_PUT = do_GET = do_POST

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """The client closes its connections as it likes."""

    server = Server(("127.0.0.1", 0), Handler)
    found.address = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
