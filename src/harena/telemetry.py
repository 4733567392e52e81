"""Sends spans to an OpenTelemetry collector and errors to Sentry, where the environment asks for it.

Guarantees: nothing is sent unless `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `SENTRY_DSN`
is set; what is asked for and not installed is an error at the start, not silence. Sentry gets an error, its traceback
and its trace id: no local variables, no bodies, no addresses, because agents' code and keys pass through them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

from harena import trace
from harena.errors import BackendUnavailable, SpecError

if TYPE_CHECKING:
    from sentry_sdk.types import Event, Hint

VARIABLES = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "OpenTelemetry collector that traces are sent to, over HTTP (none)",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "The same, with the whole path of the traces (none)",
    "OTEL_SERVICE_NAME": "Name of this process in traces (`harena-` and the command)",
    "OTEL_TRACES_SAMPLER_ARG": "Share of the traces that are sent, 0 to 1 (1)",
    "SENTRY_DSN": "Sentry project that errors are reported to (none)",
}
"""What each one does, and in brackets what holds without it. The exporter reads more of OpenTelemetry's own variables,
such as the headers."""


def start(command: str, values: Mapping[str, str] | None = None) -> Callable[[], None]:
    """Begin to send what the environment asks for. Returns the function that sends the rest and ends it."""
    values = os.environ if values is None else values
    ends: list[Callable[[], None]] = []
    if values.get("OTEL_EXPORTER_OTLP_ENDPOINT") or values.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        ends.append(_start_traces(values.get("OTEL_SERVICE_NAME") or f"harena-{command}", _share(values)))
    if dsn := values.get("SENTRY_DSN"):
        ends.append(_start_sentry(command, dsn))

    def end() -> None:
        for one in ends:
            one()
        ends.clear()

    return end


def _share(values: Mapping[str, str]) -> float:
    text = values.get("OTEL_TRACES_SAMPLER_ARG", "") or "1"
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise SpecError(f"OTEL_TRACES_SAMPLER_ARG={text!r:.40}: a share between 0 and 1")
    return share


def _start_traces(service: str, share: float) -> Callable[[], None]:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags
    except ImportError:
        raise BackendUnavailable(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, and traces need more packages: pip install 'harena[otel]'"
        ) from None
    resource = Resource.create({"service.name": service, "service.version": version("harena")})
    scope = InstrumentationScope("harena", version("harena"))
    sent = TraceIdRatioBased(share)
    processor = BatchSpanProcessor(OTLPSpanExporter())

    def context(place: trace.SpanPlace) -> SpanContext:
        ids = int(place.trace_id, 16), int(place.span_id, 16)
        return SpanContext(*ids, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    def export(span: trace.Span) -> None:
        if not sent.should_sample(None, int(span.place.trace_id, 16), span.name).decision.is_sampled():
            return
        ended = ReadableSpan(
            name=span.name,
            context=context(span.place),
            parent=context(span.parent) if span.parent else None,
            resource=resource,
            attributes=span.attributes,
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=span.began_ns,
            end_time=span.ended_ns,
            instrumentation_scope=scope,
        )
        processor.on_end(ended)

    def end() -> None:
        trace.export_to(None)
        processor.shutdown()

    trace.export_to(export)
    return end


def _start_sentry(command: str, dsn: str) -> Callable[[], None]:
    try:
        import sentry_sdk
        from sentry_sdk.integrations.logging import LoggingIntegration
        from sentry_sdk.utils import BadDsn
    except ImportError:
        raise BackendUnavailable(
            "SENTRY_DSN is set, and Sentry needs a package: pip install 'harena[sentry]'"
        ) from None

    try:
        sentry_sdk.init(
            dsn,
            release=f"harena@{version('harena')}",
            server_name=command,
            include_local_variables=False,
            include_source_context=False,
            max_request_body_size="never",
            max_breadcrumbs=0,
            default_integrations=False,
            auto_enabling_integrations=False,
            integrations=[LoggingIntegration(level=None)],
            before_send=_scrub,
        )
    except BadDsn as error:
        raise SpecError(f"SENTRY_DSN is not an address of a Sentry project: {error}") from None
    return lambda: sentry_sdk.flush(2.0)


def _scrub(event: Event, _: Hint) -> Event:
    """Keep what tells us where it broke. What was being processed is not ours to send: of an error's words the
    beginning of the first line stays, and of a log line its template."""
    kept: dict[str, Any] = {name: value for name, value in event.items() if name in _KEPT}
    if "logentry" in kept:
        kept["logentry"] = {"message": str(kept["logentry"].get("message", ""))[: trace.MAX_TEXT]}
    values: list[dict[str, Any]] = kept.get("exception", {}).get("values", [])
    for one in values:
        one["value"] = next(iter(str(one.get("value") or "").splitlines()), "")[: trace.MAX_TEXT]
    place = trace.current()
    if place is not None:
        kept["tags"] = {"trace_id": place.trace_id}
    return cast("Event", kept)


_KEPT = frozenset(
    {"event_id", "timestamp", "level", "logger", "platform", "release", "server_name", "exception", "logentry"}
)
