"""A run's page served on this machine: what it answers, to whom, and what changes it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands.run_files import ENDED, add_step, started, written

from gradscope import plugins
from gradscope.api import run_server
from gradscope.api.run_server import RunServer
from gradscope.commands import _serving, live, show
from gradscope.errors import ConfigError, OptionError
from gradscope.reporters.views import View

html = plugins.load("gradscope.reporters.training", "html")


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Serves a run until the test ends."""
    monkeypatch.setattr(run_server, "_PAUSE", 0.01)
    servers = []

    def begin(path: Path) -> RunServer:
        server = RunServer(path, lambda history: html.page(history, View()))
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    yield begin
    for server in servers:
        server.close()


def ask(
    server: RunServer, path: str, method: str = "GET", **headers: str
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    connection.request(method, path, headers=headers)
    return connection.getresponse()


def test_the_page_of_a_run(serve, tmp_path):
    server = serve(written(tmp_path / "run.db"))
    assert server.address == f"http://127.0.0.1:{server.server_port}/{server.token}/"
    assert server.server_address[0] == "127.0.0.1"
    answer = ask(server, f"/{server.token}/")
    text = answer.read().decode()
    assert answer.status == 200
    assert "train.py" in text
    assert "connect-src 'self'" in text
    assert "EventSource" in text
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Server"] == "gradscope"


@pytest.mark.parametrize("path", ["/", "/{}", "/x/", "/{}x/", "/{}/run.db", "/{}/../"])
def test_there_is_nothing_else(path, serve, tmp_path):
    server = serve(written(tmp_path / "run.db"))
    assert ask(server, path.format(server.token)).status == 404


def test_another_page_cannot_ask_for_it(serve, tmp_path):
    """Not by a name of its own that leads to this machine either."""
    server = serve(written(tmp_path / "run.db"))
    path, port = f"/{server.token}/", server.server_port
    assert ask(server, path, Host=f"localhost:{port}").status == 200
    assert ask(server, path, Host=f"evil.example:{port}").status == 404
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
        assert ask(server, path, method).status == 501


def events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, str]]:
    """The events of a stream as a browser reads them."""
    name, data = "", ""
    for line in answer:
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            data = value
        elif not field and name:
            yield name, data
            name, data = "", ""


def test_each_change_is_an_event_until_the_run_ends(serve, tmp_path):
    writer = started(tmp_path / "run.db")
    add_step(writer, 1)
    writer.flush()
    server = serve(writer.path)
    stream = events(ask(server, f"/{server.token}/events"))
    name, data = next(stream)
    assert name == "page"
    assert "running" in json.loads(data)
    for number in (2, 3, 4):
        add_step(writer, number)
    writer.flush()
    name, data = next(stream)
    while "4 steps" not in json.loads(data):
        name, data = next(stream)
    assert name == "page"
    writer.finish(ENDED)
    *_, last, end = stream
    assert last[0] == "page"
    assert "exit code 0" in json.loads(last[1])
    assert end[0] == "ended"


def test_a_damaged_run_is_an_error_in_the_browser(serve, tmp_path):
    path = written(tmp_path / "run.db")
    server = serve(path)
    path.unlink()
    assert ask(server, f"/{server.token}/").status == 500
    assert ask(server, f"/{server.token}/events").read() == b""


def test_the_commands_print_the_address(tmp_path, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(RunServer, "serve_forever", lambda self: opened.append(self.address))
    monkeypatch.setattr(_serving.webbrowser, "open", opened.append)
    monkeypatch.setattr(_serving, "_has_windows", lambda: True)
    path = written(tmp_path / "run.db")
    show.run(path, serve=True)
    live.run(path, web=True)
    assert capsys.readouterr().out.split() == [opened[0], opened[1]]
    assert opened[1] == opened[2]  # `live --web` opens it
    assert len(opened) == 3


def test_what_cannot_be_served_is_said(tmp_path, monkeypatch):
    path = written(tmp_path / "run.db")
    with pytest.raises(OptionError, match="`--serve` and `--step` do not go together"):
        show.run(path, serve=True, step=3)
    with pytest.raises(ConfigError, match="there is no run"):
        show.run(tmp_path / "no.db", serve=True)
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(OptionError, match="`--serve` is for a run"):
        show.run(tmp_path / "report.json", serve=True)
