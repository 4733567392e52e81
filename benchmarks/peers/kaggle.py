"""Run by the Python of .venv-kaggle: connect four in kaggle-environments (in process, and behind its HTTP servers, its
own way to isolate agents) and PettingZoo's connect four. Prints one JSON object of moves per second."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Generator
from pathlib import Path

AGENT = """
import random

def act(observation, configuration):
    return random.choice([column for column in range(configuration.columns) if observation.board[column] == 0])
"""


def moves_per_second(play: Callable[[], int], seconds: float) -> float:
    play()
    moves, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        moves += play()
    return moves / (time.perf_counter() - started)


def kaggle(seconds: float, agents: list[str]) -> float:
    from kaggle_environments import make  # pyright: ignore

    def play() -> int:
        environment = make("connectx")
        environment.run(agents)
        if {state.status for state in environment.state} != {"DONE"}:
            raise RuntimeError(f"the game did not end: {[state.status for state in environment.state]}")
        return len(environment.steps) - 1

    return moves_per_second(play, seconds)


@contextlib.contextmanager
def http_agents(path: Path) -> Generator[list[str]]:
    """Kaggle's isolation: each agent behind an HTTP server of its own, on the loopback."""
    servers, urls = [], []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "kaggle_environments.main", "http-server", "--host", "127.0.0.1"]
        command += ["--port", str(port)]
        servers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        urls.append(f"http://127.0.0.1:{port}/?agents[]={path}")
    try:
        for url in urls:
            for _ in range(300):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(url, timeout=1).read()
                    break
                time.sleep(0.1)
        yield urls
    finally:
        for server in servers:
            server.kill()
            server.wait()


def pettingzoo(seconds: float) -> float:
    from pettingzoo.classic import connect_four_v3  # pyright: ignore

    environment = connect_four_v3.env()

    def play() -> int:
        environment.reset(seed=1)
        moves = 0
        for name in environment.agent_iter():
            observation, _, ended, cut, _ = environment.last()
            action = None
            if not (ended or cut) and observation is not None:
                action = environment.action_space(name).sample(observation["action_mask"])
            environment.step(action)
            moves += action is not None
        return moves

    return moves_per_second(play, seconds)


def main() -> None:
    logging.disable(logging.CRITICAL)
    seconds = float(sys.argv[1])
    found: dict[str, float | str] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder, "agent.py")
        path.write_text(AGENT)
        found["kaggle in process"] = kaggle(seconds, [str(path), str(path)])
        try:
            with http_agents(path) as urls:
                found["kaggle isolated"] = kaggle(seconds, urls)
        except Exception as error:
            found["kaggle isolated"] = f"{type(error).__name__}: {error}"
        try:
            found["pettingzoo raw"] = pettingzoo(seconds)
        except Exception as error:
            found["pettingzoo raw"] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
