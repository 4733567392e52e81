"""Sessions of a process share the connections of their server or cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from harena.sessions.engines import engine

pytest.importorskip("yaml", reason="needs PyYAML: pip install 'harena[kubernetes]'")

KUBECONFIG = """
current-context: here
contexts: [{{name: here, context: {{cluster: one, user: me}}}}]
clusters: [{{name: one, cluster: {{server: "https://127.0.0.1:{port}"}}}}]
users: [{{name: me, user: {{token: secret}}}}]
"""


def test_another_kubeconfig_is_another_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[engine.SessionEngine] = []
    for port in (1, 2):
        file = tmp_path / f"config-{port}"
        file.write_text(KUBECONFIG.format(port=port))
        monkeypatch.setenv("KUBECONFIG", str(file))
        found += [engine.find(None, None, cluster=True) for _ in range(2)]
    assert found[0] is found[1]
    assert found[2] is found[3]
    assert found[0] is not found[2]
