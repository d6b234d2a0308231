"""OpenTelemetry: gauges and log records for a collector, as OTLP over HTTP in JSON.

It does not use the SDK, whose gauges have the time of their export; a step needs its own time.
https://opentelemetry.io/docs/specs/otlp/#otlphttp
"""

from __future__ import annotations

import json
import os
import re
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any, Final

from gradscope.errors import OptionError
from gradscope.records.training import TrainingRun
from gradscope.runfile.tracking import STEP, Alert, Ending, MetricRow, Tracker
from gradscope.version import __version__

packages = ()
WITHOUT = "it needs a host: `otlp://localhost:4318`"

_PORT = 4318
#: Time that a collector may take to answer, in seconds.
_TIMEOUT = 60
#: Number and text of each severity in OpenTelemetry's data model of logs.
_SEVERITIES: Final = {"info": (9, "INFO"), "warning": (13, "WARN"), "error": (17, "ERROR")}
#: Number of points in one request.
_MOST_POINTS = 10_000


class Collector:
    """A collector at an address such as ``http://localhost:4318``."""

    def __init__(self, address: str) -> None:
        self._address = address
        # One address for all that was sent: a collector behind a proxy may need a token.
        given = os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
        pairs = (pair.partition("=") for pair in given.split(",") if "=" in pair)
        self._headers = {name.strip(): urllib.parse.unquote(value) for name, _, value in pairs}
        service = os.environ.get("OTEL_SERVICE_NAME", "gradscope")
        self._resource = {"attributes": [_attribute("service.name", service)]}
        self._scope = {"name": "gradscope", "version": __version__}

    def send(
        self, rows: Sequence[MetricRow], alerts: Sequence[Alert], *, last: bool = False
    ) -> None:
        """Send the rows as gauges, and the findings as log records."""
        points: dict[str, list[dict[str, Any]]] = {}
        number = 0
        for row in rows:
            for key, value in {**row.values, STEP: float(row.step)}.items():
                point = {"timeUnixNano": _nanoseconds(row.time), "asDouble": value}
                points.setdefault(key, []).append(point)
                number += 1
            if number >= _MOST_POINTS:
                self._send_points(points)
                points, number = {}, 0
        if points:
            self._send_points(points)
        if alerts:
            records = [_log_record(one) for one in alerts]
            scoped = [{"scope": self._scope, "logRecords": records}]
            logs = {"resource": self._resource, "scopeLogs": scoped}
            self._post("logs", {"resourceLogs": [logs]})

    def close(self) -> None:
        """Do nothing: no row waits."""

    def _send_points(self, points: dict[str, list[dict[str, Any]]]) -> None:
        metrics = [{"name": key, "gauge": {"dataPoints": some}} for key, some in points.items()]
        scoped = [{"scope": self._scope, "metrics": metrics}]
        self._post(
            "metrics", {"resourceMetrics": [{"resource": self._resource, "scopeMetrics": scoped}]}
        )

    def _post(self, signal: str, content: dict[str, Any]) -> None:
        request = urllib.request.Request(
            f"{self._address}/v1/{signal}",
            json.dumps(content, allow_nan=False).encode(),
            {"Content-Type": "application/json", **self._headers},
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            answer.read()


def _nanoseconds(seconds: float) -> str:
    return str(round(seconds * 1e6) * 1000)


def _attribute(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


def _log_record(one: Alert) -> dict[str, Any]:
    number, text = _SEVERITIES[one.severity]
    return {
        "timeUnixNano": _nanoseconds(one.time),
        "severityNumber": number,
        "severityText": text,
        "body": {"stringValue": one.text},
        "attributes": [_attribute("gradscope.finding", one.title)],
    }


def address(place: str) -> str:
    """Return the address of requests for ``otlp://host``, ``host:port`` or ``https://host``.

    Alike for all spellings of one address.

    Raises:
        OptionError: the address is invalid, or has a password in it.
    """
    scheme, _, rest = place.rpartition("://")
    refusal = OptionError(f"`{place}` is not a host", help="as in `otlp://localhost:4318`")
    try:
        parts = urllib.parse.urlsplit(f"//{rest}")
        port = _PORT if parts.port is None else parts.port
    except ValueError:
        raise refusal from None
    known = scheme in ("", "otlp", "otlps", "http", "https")
    if not parts.hostname or not port or not known or re.search(r"[\s?#]", rest):
        raise refusal
    if "@" in parts.netloc:
        raise OptionError(
            "the address of an OTLP collector has a password in it, and a run's file keeps it",
            help="set OTEL_EXPORTER_OTLP_HEADERS instead",
        )
    secure = scheme in ("otlps", "https")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{'https' if secure else 'http'}://{host}:{port}{parts.path.rstrip('/')}"


def joined(place: str, ending: Ending) -> Tracker | None:
    """Return the collector; a script opens nothing in it."""
    return Collector(address(place))


def opened(place: str, run: TrainingRun) -> Tracker:
    """Return the collector."""
    return Collector(address(place))
