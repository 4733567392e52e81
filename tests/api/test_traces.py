"""One trace id from the request to the boxes, sent to a collector; errors sent to Sentry without what they were about.

Both are the real client libraries, speaking to servers in this process.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from support.served import AGENT, ENV, bearer, upload
from support.sites import Site, ended, until, worker

pytest.importorskip("opentelemetry.sdk", reason="needs OpenTelemetry: pip install 'harena[otel]'")
pytest.importorskip("sentry_sdk", reason="needs Sentry's client: pip install 'harena[sentry]'")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from harena import telemetry, trace
from harena.api import logs
from harena.arena.db.models import State
from harena.errors import BackendUnavailable, SpecError

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Collector(ThreadingHTTPServer):
    """Keeps the bodies that are posted to it."""

    def __init__(self):
        self.bodies = []
        super().__init__(("127.0.0.1", 0), _Post)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def spans(self):
        """By name: the trace, the parent, the service and the attributes."""
        found = {}
        for body in list(self.bodies):
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = next(one.value.string_value for one in group.resource.attributes if one.key == "service.name")
                for span in (span for scope in group.scope_spans for span in scope.spans):
                    named = {one.key: one.value for one in span.attributes}
                    found[span.name] = (span.trace_id.hex(), span.span_id, span.parent_span_id, service, named)
        return found


class _Post(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(_PLAIN[self.headers.get("Content-Encoding", "")](body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


def _from_brotli(body):
    import brotli  # Sentry's client uses it where it is installed

    return brotli.decompress(body)


_PLAIN = {"": bytes, "gzip": gzip.decompress, "br": _from_brotli}


@pytest.fixture
def collector():
    with Collector() as server:
        yield server
        server.shutdown()


@pytest.fixture
def endpoint(collector, monkeypatch):
    url = f"http://127.0.0.1:{collector.server_address[1]}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    return url


def test_request_job_match_and_boxes_are_one_trace_over_two_processes(tmp_path, collector, endpoint):
    end = telemetry.start("up")
    with Site(tmp_path / "arena", matchmaker=False) as site:
        sent = upload(site.client, data=AGENT, env_id=ENV, headers={"traceparent": PARENT}).json()["id"]
        process = worker(site)
        until(lambda: site.state(sent) is State.RANKED)
        process.terminate()
        ended(process)
    end()
    spans = collector.spans
    request, job = spans["POST /v1/submissions"], spans["job evaluate"]
    match, box = spans[f"match {ENV}"], spans["box 0"]
    answer = spans["POST /v1/worker/jobs/{job_id}/result"]
    assert {one[0] for one in (request, job, match, box, answer)} == {TRACE}
    assert [job[2], match[2], box[2], answer[2]] == [request[1], job[1], match[1], job[1]]
    assert [request[3], job[3], match[3]] == ["harena-up", "harena-worker", "harena-worker"]
    assert box[4]["cpu_s"].double_value > 0
    assert box[4]["moves"].int_value > 0


def test_no_seed_and_no_code_is_in_a_span(tmp_path, collector, endpoint):
    end = telemetry.start("up")
    with Site(tmp_path / "arena", matchmaker=False) as site:
        sent = site.send(b"SECRET = 'in the code'\n" + AGENT)
        process = worker(site)
        until(lambda: site.state(sent) is State.RANKED)
        process.terminate()
        ended(process)
    end()
    allowed = {"job", "kind", "attempt", "worker", "outcome", "request_id", "match_id", "games", "status", "steps"}
    allowed |= {"agent", "start_s", "cpu_s", "moves", "http.request.method", "http.route", "http.response.status_code"}
    assert {name for span in collector.spans.values() for name in span[4]} <= allowed
    assert not any(b"in the code" in body for body in collector.bodies)


@pytest.mark.parametrize(("share", "sent"), [("0", 0), ("1", 2)])
def test_a_share_of_the_traces_is_sent(collector, endpoint, share, sent):
    end = telemetry.start("up", {**os.environ, "OTEL_TRACES_SAMPLER_ARG": share})
    with trace.span("one", parent=trace.parse(PARENT)), trace.span("two"):
        pass
    end()
    assert len(collector.spans) == sent


def test_a_collector_that_is_away_costs_nothing(client, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    end = telemetry.start("up")
    assert client.get("/health").status_code == 200
    end()


def test_a_refusal_and_its_log_line_have_the_trace_id(client, caplog):
    answer = client.get("/v1/submissions/999999", headers={"traceparent": PARENT})
    assert answer.json()["trace_id"] == TRACE
    other = client.get("/v1/submissions/999999", headers={"traceparent": "not one"}).json()["trace_id"]
    assert len(other) == 32
    assert other != TRACE
    with trace.span("here", parent=trace.parse(PARENT)):
        record = logging.makeLogRecord({"msg": "told"})
        assert json.loads(logs._JsonLines().format(record))["trace_id"] == TRACE
        assert TRACE in logs._Text("%(message)s").format(record)
    assert "trace_id" not in json.loads(logs._JsonLines().format(record))


BREAKS = """
import logging
from harena import telemetry, trace
end = telemetry.start("up")
with trace.span("here", parent=trace.parse(PARENT)):
    secret = "hrn_" + "secret_token"
    try:
        raise RuntimeError("it broke" + chr(10) + "parameters: " + secret)
    except RuntimeError:
        logging.getLogger("harena.api").exception("request %s failed", secret)
end()
"""


def test_sentry_gets_the_error_and_not_what_it_was_about(collector):
    dsn = f"http://key@127.0.0.1:{collector.server_address[1]}/1"
    code = BREAKS.replace("PARENT", repr(PARENT))  # a process of its own: Sentry's client stays in one that used it
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "SENTRY_DSN": dsn}, check=True, timeout=60)
    sent = b"".join(collector.bodies).decode()
    assert "it broke" in sent
    assert "RuntimeError" in sent
    assert TRACE in sent
    assert "hrn_secret_token" not in sent


@pytest.mark.parametrize(
    ("module", "variable", "extra"),
    [
        ("opentelemetry.sdk.resources", "OTEL_EXPORTER_OTLP_ENDPOINT", r"harena\[otel\]"),
        ("sentry_sdk", "SENTRY_DSN", r"harena\[sentry\]"),
    ],
)
def test_what_is_asked_for_and_not_installed_is_named(monkeypatch, module, variable, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BackendUnavailable, match=extra):
        telemetry.start("up", {variable: "http://127.0.0.1:9"})


@pytest.mark.parametrize(
    "values",
    [
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_SAMPLER_ARG": "2"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_SAMPLER_ARG": "half"},
    ],
)
def test_a_setting_that_cannot_be_is_refused(values):
    with pytest.raises(SpecError):
        telemetry.start("up", values)


def test_a_command_says_so_in_one_sentence(tmp_path):
    env = {**os.environ, "SENTRY_DSN": "nonsense", "HARENA_TOKEN": "x" * 40}
    command = [sys.executable, "-m", "harena", "worker", "--server", "http://127.0.0.1:9"]
    ran = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert "SENTRY_DSN" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_worker_is_told_what_its_job_follows_from(tmp_path):
    with Site(tmp_path / "arena", matchmaker=False) as site:
        answer = upload(site.client, data=AGENT, env_id=ENV, headers={"traceparent": PARENT})
        assert answer.status_code == 201
        given = site.claim(site.key())
        place = trace.parse(given["trace"])
        assert place is not None
        assert place.trace_id == TRACE
        refused = site.client.get("/v1/worker", headers=bearer("x" * 40) | {"traceparent": PARENT})
        assert refused.json()["trace_id"] == TRACE
