"""Runs the steps of a Task in the session of its Sandbox, over the data plane of the pod.

Each step has an operation id made from the task's uid, and a session runs an id once. So an operator that takes over
from one that was killed sends the same steps again, and nothing runs twice.
"""

from __future__ import annotations

import time
from typing import Any

from harena.errors import BoxError, HarenaError, Retry, SpecError
from harena.kube.objects import Object, items, part
from harena.operator.views import when
from harena.sessions.engines.remote import RemoteEngine
from harena.sessions.errors import Conflict
from harena.sessions.operations import Record
from harena.sessions.steps import seconds

MAX_OUTPUT = 64 * 1024
"""Characters of stdout, and of stderr, in the status of a task: an object has about a megabyte."""
MAX_STEP_OUTPUT = 4096
TIMEOUT = "30s"
GRACE_S = 30.0


def create_session(engine: RemoteEngine) -> Record:
    """A session that lives as long as its pod."""
    return engine.create_session(idle_s=None, lifetime_s=None, allocation_s=60.0)


def is_used(engine: RemoteEngine) -> bool:
    """Whether anybody holds a connection or a session of the server."""
    gauges = dict(line.split() for line in engine.metrics().splitlines() if line and not line.startswith("#"))
    return any(float(gauges.get(f"harena_serve_{name}", 0)) > 0 for name in ("clients", "sessions", "boxes"))


def run(engine: RemoteEngine, session: str, task: Object) -> Object:
    """Run the steps and return the status. The guest's failure and ours both end in Failed, with different words."""
    spec: Object = part(task, "spec")
    started: Any = part(task, "status").get("startedAt")
    try:
        deadline = when(started) + seconds(spec.get("timeout") or TIMEOUT)
    except SpecError as error:
        return failure(f"timeout: {error}", part(task, "status"))
    ran: list[Record] = []
    for number, step in enumerate(items(spec, "steps")):
        left = deadline - time.time()
        if left <= 0:
            return _status(
                ran, f"the task's timeout of {spec.get('timeout') or TIMEOUT} was over before {step.get('name')}"
            )
        given = dict(step)
        if given.get("type", "Command") == "Command":
            given["timeout"] = min(left, seconds(given["timeout"]) if given.get("timeout") else left)
        try:
            record = _run_once(engine, session, given, f"{task['metadata']['uid']}/{number}", deadline)
        except BoxError as error:
            if error.retry is Retry.SAFE:
                raise
            return _status(ran, f"step {step.get('name')}: the platform failed: {error}")
        except HarenaError as error:
            return _status(ran, f"step {step.get('name')}: {error}")
        ran.append(record)
        if record["state"] != "Succeeded" and not spec.get("keepGoing"):
            break
    return _status(ran, "")


def _run_once(engine: RemoteEngine, session: str, step: Record, operation: str, deadline: float) -> Record:
    """Run a step, or return what it did when an operator that is gone ran it. Then its time was another one, so the
    session takes it for another step, and its history has the result."""
    try:
        ran = engine.execute(
            session, [step], operation_id=operation, keep_going=False, trace_id="", on_step=None, on_output=None
        )
        return ran["status"]["steps"][0]
    except Conflict:
        while True:
            for record in engine.history(session):
                if record.get("operationId") == operation:
                    return record
            if time.time() > deadline + GRACE_S:
                raise BoxError("the step of an earlier operator did not end in time", retry=Retry.NEVER) from None
            time.sleep(0.2)


def failure(message: str, before: Object) -> Object:
    now = _now()
    return {
        "state": "Failed",
        "message": message,
        "startedAt": before.get("startedAt") or now,
        "completedAt": now,
    }


def _status(ran: list[Record], problem: str) -> Object:
    bad = next((step for step in ran if step.get("state") != "Succeeded"), None)
    message = problem
    if bad is not None and not problem:
        message = f"step {bad.get('name')}: {bad.get('message') or bad.get('verdict') or bad.get('state')}"
    code = next((step["exitCode"] for step in reversed(ran) if step.get("exitCode") is not None), None)
    return {
        "state": "Failed" if bad is not None or problem else "Succeeded",
        "message": message[:1000],
        "stdout": _tail("".join(step.get("stdout") or "" for step in ran), MAX_OUTPUT),
        "stderr": _tail("".join(step.get("stderr") or "" for step in ran), MAX_OUTPUT),
        "exitCode": bad.get("exitCode") if bad is not None else code,
        "completedAt": _now(),
        "steps": [_step(step) for step in ran],
    }


def _step(step: Record) -> Object:
    kept = ("name", "state", "exitCode", "verdict", "isolation", "startedAt", "completedAt", "durationSeconds")
    made: Object = {name: step[name] for name in kept if step.get(name) is not None}
    for stream in ("stdout", "stderr"):
        made[stream] = _tail(step.get(stream) or "", MAX_STEP_OUTPUT)
    return made


def _tail(text: str, most: int) -> str:
    """The end of a text, and how much was left out. NUL cannot be in an object's text everywhere."""
    text = text.replace("\0", "\ufffd")
    return text if len(text) <= most else f"[{len(text) - most} characters left out]\n{text[-most:]}"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
