"""A collector of OpenTelemetry in a few lines; the official protocol parses what it is sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Collector:
    """Keeps the requests. ``status`` is what it answers; it answers once ``answers`` is set."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, bytes]] = []
        self.asked, self.answers = threading.Event(), threading.Event()
        self.answers.set()
        self.status = 200
        self.port = 0

    @property
    def address(self) -> str:
        return f"otlp://127.0.0.1:{self.port}"

    def points(self) -> dict[str, list[tuple[int, float]]]:
        """The values of each gauge with their times in nanoseconds, as the protocol reads them."""
        found: dict[str, list[tuple[int, float]]] = {}
        for message in self._messages("/v1/metrics"):
            for resource in message["resourceMetrics"]:
                for scope in resource["scopeMetrics"]:
                    for metric in scope["metrics"]:
                        points = metric["gauge"]["dataPoints"]
                        found.setdefault(metric["name"], []).extend(
                            (int(point["timeUnixNano"]), float(point["asDouble"]))
                            for point in points
                        )
        return found

    def logs(self) -> list[dict[str, Any]]:
        """The log records."""
        return [
            record
            for message in self._messages("/v1/logs")
            for resource in message["resourceLogs"]
            for scope in resource["scopeLogs"]
            for record in scope["logRecords"]
        ]

    def _messages(self, path: str) -> Iterator[dict[str, Any]]:
        for asked, body in self.requests:
            if asked == path:
                yield _parsed(path, body)


def _parsed(path: str, body: bytes) -> dict[str, Any]:
    """By OpenTelemetry's own classes, if they are installed: they refuse any other message."""
    import json

    try:
        from google.protobuf import json_format
        from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
    except ImportError:
        found: dict[str, Any] = json.loads(body)
        return found
    message: Any = (
        metrics_service_pb2.ExportMetricsServiceRequest()
        if path == "/v1/metrics"
        else logs_service_pb2.ExportLogsServiceRequest()
    )
    json_format.Parse(body, message)
    plain: dict[str, Any] = json_format.MessageToDict(message)
    return plain


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens on a port of this machine."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.asked.set()
            found.answers.wait()
            if found.status == 200:
                found.requests.append((self.path, body))
            self.send_response(found.status)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield found
    finally:
        found.answers.set()
        server.shutdown()
        server.server_close()
