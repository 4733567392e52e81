"""Files of deploy/: checked by the tools that read them, and against what the arena knows."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from harena.arena.variables import VARIABLES

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
PORTS = {"arena": {8000, 7860}, "redis-commander": {8081}, "prometheus": {9090}, "grafana": {3000}}


def test_compose_opens_the_ports_of_the_contract_on_loopback_only():
    found = {}
    for name, service in COMPOSE["services"].items():
        for port in service.get("ports", []):
            address, outside, _ = port.split(":")
            assert address == "127.0.0.1", (name, port)
            found.setdefault(name, set()).add(int(outside))
    assert found == PORTS


def test_compose_gives_nobody_privileges_and_knows_no_default_password():
    text = (ROOT / "compose.yaml").read_text()
    assert "${DB_PASSWORD:?" in text
    assert "${DB_PASSWORD:-" not in text
    for name, service in COMPOSE["services"].items():
        assert not service.get("privileged"), name
        assert not any("docker.sock" in volume for volume in service.get("volumes", [])), name
    assert COMPOSE["services"]["arena"]["cap_drop"] == ["ALL"]
    assert COMPOSE["networks"]["inside"]["internal"] is True
    assert COMPOSE["services"]["postgres"]["networks"] == ["inside"]


def test_only_the_worker_of_compose_runs_agents_and_gets_what_boxes_need():
    arena, worker = COMPOSE["services"]["arena"], COMPOSE["services"]["worker"]
    assert "--no-workers" in arena["command"]
    assert "security_opt" not in arena
    assert {option.partition("=")[0] for option in worker["security_opt"]} == {"seccomp", "systempaths"}
    assert worker["networks"] == ["inside"]
    assert (worker["image"], worker["cap_drop"]) == (arena["image"], ["ALL"])
    assert worker["depends_on"]["arena"] == {"condition": "service_healthy"}, "it makes the secret that they share"


def test_compose_mounts_and_builds_from_files_that_are_there():
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", []):
            if volume.startswith("./"):
                assert (ROOT / volume.split(":")[0]).exists(), volume
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()
        for option in service.get("security_opt", []):
            if option.startswith("seccomp=./"):
                assert (ROOT / option.removeprefix("seccomp=")).is_file()


def test_variables_of_the_arena_in_compose_and_the_example_are_known():
    known = {*VARIABLES, "DB_USER", "DB_PASSWORD"}
    assert set(COMPOSE["services"]["arena"]["environment"]) <= known
    example = (ROOT / ".env.example").read_text()
    named = set(re.findall(r"\$\{([A-Z_]+)", (ROOT / "compose.yaml").read_text()))
    assert named <= known
    assert {"DB_USER", "DB_PASSWORD", "HARENA_METRICS_TOKEN"} <= set(re.findall(r"^([A-Z_]+)=", example, re.MULTILINE))


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.evaluator"])
def test_images_end_as_an_ordinary_user(name):
    users = re.findall(r"^USER (\S+)", (ROOT / "docker" / name).read_text(), re.MULTILINE)
    assert users
    assert users[-1] not in ("root", "0")


def test_the_entrypoint_makes_a_secret_once_and_keeps_it(tmp_path):
    harena = tmp_path / "harena"
    harena.write_text('#!/bin/sh\nprintf "%s\\n" "$SECRET_KEY" "$@"\n')
    harena.chmod(0o755)
    environ = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HARENA_DATA": str(tmp_path),
        "DATABASE_URL": "postgresql://x",
    }
    start = [str(ROOT / "docker" / "entrypoint.sh"), "up", "a b"]
    first = subprocess.run(start, env=environ, capture_output=True, text=True, check=True).stdout.splitlines()
    again = subprocess.run(start, env=environ, capture_output=True, text=True, check=True).stdout.splitlines()
    assert first == again
    assert len(first[0]) == 64
    assert first[1:] == ["up", "a b"]
    assert stat.S_IMODE((tmp_path / "compose-secret.key").stat().st_mode) == 0o600
    given = subprocess.run(start, env={**environ, "SECRET_KEY": "mine"}, capture_output=True, text=True, check=True)
    assert given.stdout.startswith("mine\n")


def checked(*command):
    if shutil.which(command[0]) is None:
        pytest.skip(f"host: no {command[0]}")
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.services
def test_prometheus_reads_its_configuration():
    done = checked("promtool", "check", "config", "--syntax-only", str(ROOT / "deploy" / "prometheus.yml"))
    assert done.returncode == 0, done.stderr


@pytest.mark.services
def test_systemd_reads_the_units(tmp_path):
    for unit in (ROOT / "deploy" / "systemd").iterdir():
        # The program is installed on the machine that runs it.
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/harena/bin/harena", "/bin/true"))
    done = checked("systemd-analyze", "verify", *map(str, sorted(tmp_path.iterdir())))
    ours = [line for line in done.stderr.splitlines() if "harena" in line]
    assert (done.returncode, ours) == (0, [])


@pytest.mark.services
def test_nginx_reads_its_configuration(tmp_path):
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=arena.example.org"]
    checked("openssl", *made, "-keyout", str(key), "-out", str(certificate))
    server = (ROOT / "deploy" / "nginx.conf").read_text()
    server = server.replace("/etc/ssl/arena.example.org.crt", str(certificate))
    server = server.replace("/etc/ssl/private/arena.example.org.key", str(key))
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {tmp_path}/{kind};\n" for kind in kinds)
    logs = f"access_log off;\nerror_log {tmp_path}/error.log;\n"
    (tmp_path / "nginx.conf").write_text(f"pid {tmp_path}/pid;\nevents {{}}\nhttp {{\n{places}{logs}{server}\n}}\n")
    done = checked("nginx", "-t", "-q", "-c", str(tmp_path / "nginx.conf"), "-p", str(tmp_path))
    assert done.returncode == 0, done.stderr


@pytest.mark.services
def test_caddy_reads_its_configuration():
    done = checked(
        "caddy", "adapt", "--validate", "--adapter", "caddyfile", "--config", str(ROOT / "deploy" / "Caddyfile")
    )
    assert done.returncode == 0, done.stderr
