from __future__ import annotations

import logging
from pathlib import Path

import pytest

from harena.arena import variables as arena_variables
from harena.match import variables as match_variables
from harena.match.executor import config
from harena.match.executor.config import ConfigError

EVERYTHING = """
executor:
  host: 0.0.0.0
  port: 6000
  max_matches: 3
  metrics_port: 0
  use_k8s: true
  max_watchers: 5
  max_games: 10
  max_timeout_sec: 900
  max_message_mb: 20
  grace_sec: 1.5
  environments: ["mygames:Chess"]
  auth_token: secret
  log_level: debug
  tls: {cert: /etc/c.pem, key: /etc/k.pem, client_ca: /etc/ca.pem}
k8s:
  namespace: matches
  orchestrator_image: registry.example/orchestrator:1
  agent_image: registry.example/python:1
  contexts: [near, far]
  kubeconfig: /etc/kube
  max_jobs: 3
  start_timeout_sec: 20
  ttl_sec: 60
  keep_jobs: true
  retries: 1
  image_pull_secrets: [pull]
  node_selector: {pool: matches}
  runtime_class: gvisor
resource_limits:
  cpu_count: 1
  memory_limit: "512m"
  processes: 20
  start_timeout_sec: 10
  step_timeout_sec: 2
  match_timeout_sec: 60
sandbox: {log_kb: 128, output_mb: 4, tmp_dir: /tmp/x, replay_dir: /srv/replays, max_code_size_mb: 10}
validation:
  max_file_size_mb: 5
  max_lines: 500
  allowed_extensions: [.py, JSON]
  forbidden_imports: [os, subprocess]
fetch:
  allow_hosts: [Example.org, "*.cdn.example.org", "store.example.org:9000"]
  private_hosts: ["store.example.org:9000"]
  allow_http: true
  file_folder: /srv/agents
  ca_file: /etc/ca.pem
  timeout_sec: 5
  max_mb: 10
  s3: {endpoint: "https://s3.example.org/", region: eu-west-1, buckets: [agents]}
replay: {folder: /srv/replays, base_url: "https://example.org/replays/", keep_days: 7, max_files: 10, max_mb: 9,
  format: json, compress: true, max_frames: 100, include_observations: false}
"""


def test_the_defaults_are_the_expected_ones() -> None:
    made = config.load(environ={})
    assert (made.executor.host, made.executor.port) == ("127.0.0.1", 50051)
    limits = made.resource_limits
    assert (limits.cpu_count, limits.memory_limit, limits.processes) == (1, 512, 50)
    assert (limits.start_timeout_sec, limits.step_timeout_sec, limits.match_timeout_sec) == (30, 5, 300)
    assert (made.fetch.max_mb, made.validation.max_file_size_mb) == (50, 10)
    assert not made.fetch.allow_hosts


def test_every_key_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(EVERYTHING)
    with caplog.at_level(logging.INFO):
        made = config.load(path, environ={})
    assert made.executor.environments == ("mygames:Chess",)
    assert made.executor.tls.client_ca == Path("/etc/ca.pem")
    assert made.resource_limits.memory_limit == 512
    assert made.validation.forbidden_imports == ("os", "subprocess")
    assert made.fetch.allow_hosts == ("example.org", "*.cdn.example.org", "store.example.org:9000")
    assert made.fetch.s3.endpoint == "https://s3.example.org"
    assert (made.replay.base_url, made.replay.keep_days) == ("https://example.org/replays", 7)
    assert made.validation.allowed_extensions == (".py", ".json")
    assert (made.use_k8s, made.k8s.namespace, made.k8s.contexts) == (True, "matches", ("near", "far"))
    assert made.k8s.node_selector == {"pool": "matches"}
    said = [record.message for record in caplog.records]
    assert [line for line in said if "sandbox.tmp_dir has no effect" in line] == said


def test_variables_win_over_the_file_and_arguments_over_both(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("executor: {host: 10.0.0.1, port: 1}")
    environ = {"CONFIG_PATH": str(path), "EXECUTOR_HOST": "::1", "EXECUTOR_PORT": "0", "LOG_LEVEL": "warning"}
    made = config.load(environ=environ)
    assert (made.executor.host, made.executor.port, made.executor.log_level) == ("::1", 0, "WARNING")
    assert config.load(environ={"CONFIG_PATH": str(path)}).executor.port == 1
    chosen = config.override(made, host="localhost", port=5, file_folder="/srv")
    assert (chosen.executor.host, chosen.executor.port, chosen.fetch.file_folder) == ("localhost", 5, Path("/srv"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("executor: {prot: 3}", "executor.prot: no such key; did you mean port"),
        ("executer: {}", "did you mean executor"),
        ("fetch: {s3: {bucket: a}}", "fetch.s3.bucket: no such key; did you mean buckets"),
        ("resource_limits: {cpu_count: none}", "cpu_count"),
        ("resource_limits: {gpu_count: 1}", "resource_limits.gpu_count: no such key"),
        ("replay: {format: avi}", "replay.format: expected one of json"),
        ("k8s: {replicas: 3}", "k8s.replicas: no such key"),
        ("k8s: {namespace: ../kube-system}", "k8s.namespace"),
        ("{sandbox: {replay_dir: /a}, replay: {folder: /b}}", "the same setting"),
        ("{sandbox: {max_code_size_mb: 9}, fetch: {max_mb: 8}}", "the same setting"),
        ("resource_limits: {memory_limit: lots}", "memory_limit"),
        ("resource_limits: {memory_limit: 1}", "from 16m"),
        ("resource_limits: {match_timeout_sec: .nan}", "match_timeout_sec"),
        ("executor: {port: '80'}", "executor.port"),
        ("executor: {port: true}", "executor.port"),
        ("executor: {host: 5}", "executor.host"),
        ("executor: {tls: {cert: /a}}", "belong together"),
        ("executor: {tls: {client_ca: /a}}", "needs cert and key"),
        ("executor: {max_timeout_sec: 10}", "max_timeout_sec"),
        ("executor: [1]", "executor: expected a mapping"),
        ("fetch: {allow_hosts: 'example.org'}", "allow_hosts"),
        ("fetch: {allow_hosts: ['https://example.org']}", "allow_hosts[0]"),
        ("fetch: {private_hosts: [example.org]}", "add it there too"),
        ("fetch: {s3: {endpoint: s3.example.org}}", "https://"),
        ("[1, 2]", "expected a mapping"),
        ("executor: {1: 2}", "executor.1"),
        ("a: [", "not YAML"),
        ("a: !!python/object/apply:os.system ['true']", "not YAML"),
        ("a: !!python/name:os.system", "not YAML"),
        ("[" * 5000, "not YAML"),
        ("executor: {port: \xff}", "executor.port"),
        ("d: 2001-99-99", "not YAML"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(text.encode("latin-1" if "\xff" not in text else "utf-8"))
    with pytest.raises(ConfigError) as caught:
        config.load(path, environ={})
    assert says in str(caught.value)


def test_a_wrong_variable_is_refused_by_name() -> None:
    for environ in ({"EXECUTOR_PORT": "http"}, {"EXECUTOR_PORT": "70000"}, {"LOG_LEVEL": "loud"}):
        with pytest.raises(ConfigError, match=next(iter(environ))):
            config.load(environ=environ)


def test_a_file_that_is_missing_or_huge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        config.load(tmp_path / "missing.yaml", environ={})
    (tmp_path / "huge.yaml").write_bytes(b"#" * (config.MAX_FILE + 1))
    with pytest.raises(ConfigError, match="larger than"):
        config.load(tmp_path / "huge.yaml", environ={})


def test_references_that_multiply_do_not() -> None:
    lines = ["fetch:", "  a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(ConfigError, match=r"fetch\.a0"):
        config.parse("\n".join([*lines, "executor: {host: *a11}"]))


CONTRACT = """
executor: {use_k8s: true}
k8s: {namespace: rl-arena, orchestrator_image: "rl-arena-orchestrator:latest"}
resource_limits: {cpu_count: 1, memory_limit: "512m", step_timeout_sec: 5, match_timeout_sec: 300}
sandbox: {tmp_dir: /tmp/rl-arena, replay_dir: ./replays, max_code_size_mb: 50}
validation: {max_file_size_mb: 10, max_lines: 10000, allowed_extensions: [.py, .txt, .json],
  forbidden_imports: [os.system, subprocess, eval, exec, __import__]}
replay: {format: json, compress: false, max_frames: 100000, include_observations: true}
"""


def test_the_file_that_users_have_is_accepted_as_it_stands(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        made = config.parse(CONTRACT)
    assert made.use_k8s
    assert (made.replay.folder, made.fetch.max_mb) == (Path("replays"), 50)
    assert made.validation.forbidden_imports == ("os.system", "subprocess", "eval", "exec", "__import__")
    assert [record.message for record in caplog.records] == [
        "config: sandbox.tmp_dir has no effect: agents are never unpacked on the host"
    ]


def test_more_than_one_processor_is_accepted_and_said_to_have_no_effect_here(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert config.parse("resource_limits: {cpu_count: 2}").resource_limits.cpu_count == 2
        assert config.parse("{executor: {use_k8s: true}, resource_limits: {cpu_count: 2}}").use_k8s
    assert [record.message.partition(":")[2] for record in caplog.records] == [
        " resource_limits.cpu_count has no effect: on this machine an agent is pinned to one core"
    ]


def test_either_section_turns_jobs_on() -> None:
    assert config.parse("k8s: {use_k8s: true}").use_k8s
    assert config.parse("executor: {use_k8s: true}").use_k8s
    assert not config.parse("k8s: {namespace: matches}").use_k8s


def test_the_shipped_file_says_what_the_defaults_are() -> None:
    shipped = config.load(Path(__file__).parents[2] / "config" / "limits.yaml", environ={})
    assert shipped == config.load(environ={})


def test_the_shipped_environment_names_known_variables() -> None:
    lines = (Path(__file__).parents[2] / ".env.example").read_text().splitlines()
    names = {line.lstrip("# ").partition("=")[0] for line in lines if "=" in line}
    assert {"EXECUTOR_HOST", "EXECUTOR_PORT", "CONFIG_PATH", "LOG_LEVEL"} <= names
    composed = {"COMPOSE_PROJECT_NAME", "DB_USER", "DB_PASSWORD"}  # only the compose file reads these
    assert names <= {*match_variables.VARIABLES, *arena_variables.VARIABLES, *composed}
