"""Alert rules and dashboards, tried by Prometheus itself on a real arena."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import yaml

pytest.importorskip("gymnasium")

from harena.api.http.metrics import Metrics
from harena.arena.arena import Arena
from harena.arena.db.ladder.matches import Seated
from harena.arena.db.models import MatchState, State, SubmissionKind
from harena.arena.settings import Settings
from harena.arena.submissions.intake import Upload
from harena.arena.submissions.service import Evaluated
from support.arenas import BALANCE, ENV, Site
from support.servers import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
SOON_S = 110.0
_NAME = re.compile(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b(?!\s*\()")
_LABELS = re.compile(r"\{[^}]*\}|\b(?:by|without)\s*\([^)]*\)")
WORDS = frozenset({"histogram_quantile"})


def queries():
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield target["expr"]
    for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def names_in(query):
    return {*_NAME.findall(_LABELS.sub(" ", query)), *re.findall(r"\bjobs\b(?=\{)", query)} - WORDS


def test_queries_name_metrics():
    assert len(DASHBOARDS) == 1
    named = set().union(*map(names_in, queries()))
    assert {"harena_matches_total", "jobs", "http_request_duration_seconds_bucket"} <= named
    assert len(named) >= 20


def test_provisioning_files_fit_together():
    provider = yaml.safe_load((DEPLOY / "grafana/dashboards/provider.yaml").read_text())["providers"][0]
    source = yaml.safe_load((DEPLOY / "grafana/datasources/prometheus.yaml").read_text())["datasources"][0]
    compose = yaml.safe_load((DEPLOY.parent / "compose.yaml").read_text())["services"]
    mounted = [volume.split(":")[:2] for volume in compose["grafana"]["volumes"] if volume.startswith("./")]
    assert ["./deploy/grafana/dashboards", provider["options"]["path"]] in mounted
    for here, _ in mounted:
        assert (DEPLOY.parent / here).is_dir()
    prometheus = [volume.split(":")[:2] for volume in compose["prometheus"]["volumes"] if volume.startswith("./")]
    rules = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["rule_files"]
    assert ["./deploy/alerts.yml", f"/etc/prometheus/{rules[0]}"] in prometheus
    for path in DASHBOARDS:
        panels = [panel for panel in json.loads(path.read_text())["panels"] if panel["type"] != "row"]
        assert all(panel["datasource"]["uid"] == source["uid"] for panel in panels)
        assert len({panel["id"] for panel in panels}) == len(panels)


def promtool(*arguments):
    if shutil.which("promtool") is None:
        pytest.skip("no promtool here: apt-get install prometheus")
    done = subprocess.run(["promtool", *arguments], cwd=DEPLOY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.services
def test_alert_rules_are_valid_and_fire_when_they_should():
    promtool("check", "rules", "alerts.yml")
    promtool("test", "rules", "alerts_test.yml")


@contextlib.contextmanager
def prometheus(folder, target):
    if shutil.which("prometheus") is None:
        pytest.skip("no Prometheus here: apt-get install prometheus")
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(DEPLOY / "alerts.yml")],
        "scrape_configs": [{"job_name": "harena", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", *options, f"--web.listen-address={address}"], stdout=log, stderr=log, cwd=folder
        )
    try:
        with httpx.Client(base_url=f"http://{address}/api/v1", trust_env=False, timeout=30) as client:
            yield client
    finally:
        process.kill()
        process.wait()


def until(look):
    end = time.monotonic() + SOON_S
    while True:
        with contextlib.suppress(httpx.HTTPError, KeyError):
            if found := look():
                return found
        assert time.monotonic() < end, "it never came"
        time.sleep(0.1)


@pytest.mark.services
@pytest.mark.timeout(400)
def test_prometheus_finds_every_metric_of_the_dashboards_and_alerts(tmp_path):
    settings = Settings.from_env(tmp_path / "arena", {"HARENA_WORKERS": "1"})
    with Arena(settings) as arena, Site(arena) as site, prometheus(tmp_path, f"127.0.0.1:{site.port}") as client:
        arena.put_environment(ENV, settings={"episodes": 2, "practice_episodes": 1})
        upload = [Upload(name="agent.py", data=BALANCE.encode())]
        sent = arena.submissions.submit(upload, owner="ann", env_id=ENV)

        def ask(query):
            answer = client.get("/query", params={"query": query})
            if answer.status_code == 503:  # it is still starting
                return []
            assert answer.status_code == 200, f"{query}: {answer.text}"
            return answer.json()["data"]["result"]

        until(lambda: ask('up{job="harena"} == 1'))
        known = until(lambda: client.get("/metadata", params={"limit": 10000}).json()["data"])
        for query in queries():
            ask(query)
            for name in names_in(query):
                assert name.removesuffix("_bucket") in known or name == "up", f"no metric {name}: {query}"
        until(lambda: arena.store.submissions.get(sent.id).state is State.RANKED)
        until(lambda: ask(f'evaluation_completed_total{{env_id="{ENV}"}} == 1'))
        until(lambda: {row["metric"]["state"] for row in ask("harena_boxes")} == {"busy", "warm", "leaked"})
        until(lambda: ask('sum(harena_boxes{state=~"busy|warm"}) >= 1'))
        until(lambda: ask("harena_leads == 1"))
        until(lambda: all(rule["health"] == "ok" for rule in client.get("/rules").json()["data"]["groups"][0]["rules"]))


def test_what_ends_badly_is_counted_by_its_fault():
    metrics = Metrics()
    seats = tuple(Seated(score=0.0, status=status) for status in ("ok", "timeout", "crash"))
    for state in (MatchState.FINISHED, MatchState.VOID):
        metrics.match_ended(SimpleNamespace(state=state, seats=seats if state == "finished" else ()), "pong")
    metrics.evaluated(Evaluated(step="failed", env_id="pong", kind=SubmissionKind.VERIFIED, fault="platform"))
    metrics.evaluated(Evaluated(step="failed", env_id="pong", kind=SubmissionKind.VERIFIED, fault="timeout"))
    try:
        raise RuntimeError("a bug")
    except RuntimeError:
        logging.getLogger("harena.arena").exception("something failed")
    logging.getLogger("harena.arena").error("without a traceback")
    text = metrics.text().decode().splitlines()
    for line in (
        'harena_matches_total{env_id="pong",state="finished"} 1.0',
        'harena_forfeits_total{env_id="pong",fault="crash"} 1.0',
        'harena_forfeits_total{env_id="pong",fault="timeout"} 1.0',
        'harena_clock_violations_total{env_id="pong"} 2.0',
        'harena_platform_faults_total{what="match"} 1.0',
        'harena_platform_faults_total{what="evaluation"} 1.0',
        'harena_exceptions_total{logger="harena.arena"} 1.0',
    ):
        assert line in text
