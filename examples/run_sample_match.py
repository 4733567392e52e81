"""Plays a match of Pong over gRPC and prints how it went.

python examples/run_sample_match.py                            # starts an executor of its own
python examples/run_sample_match.py --address localhost:50051  # uses a running one
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc

from harena.match.executor import config, server
from harena.match.executor.pb import executor_pb2 as pb
from harena.match.executor.pb import executor_pb2_grpc as rpc

AGENTS = Path(__file__).parent / "agents" / "pong"


@contextlib.contextmanager
def connected(address: str) -> Iterator[rpc.ExecutorStub]:
    with contextlib.ExitStack() as stack:
        if not address:
            running = stack.enter_context(server.start(config.parse("executor: {port: 0}")))
            address = f"127.0.0.1:{running.port}"
        yield rpc.ExecutorStub(stack.enter_context(grpc.insecure_channel(address)))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="", metavar="HOST:PORT", help="of a running executor")
    parser.add_argument("--games", type=int, default=1, metavar="N")
    parser.add_argument("--environment", default="pong", metavar="ENV")
    parser.add_argument("agents", nargs="*", type=Path, metavar="FILE.py", help="two agents; two samples without them")
    args = parser.parse_args(argv)
    files = args.agents or sorted(AGENTS.glob("*.py"))[:2]
    agents = [
        pb.AgentData(agent_id=f"{path.stem}-{seat}", code_zip=path.read_bytes(), version="1.0")
        for seat, path in enumerate(files)
    ]
    order = pb.MatchRequest(environment=args.environment, agents=agents, games=args.games, record_replay=True)
    with connected(args.address) as executor:
        try:
            answer = executor.RunMatch(order, timeout=600)
        except grpc.RpcError as error:
            print(f"the match was refused: {error.details()}", file=sys.stderr)
            return 1
    if answer.status != pb.STATUS_SUCCESS:
        print(f"{pb.MatchStatus.Name(answer.status)}: {answer.error_message}", file=sys.stderr)
        return 1
    print(
        f"winner: {answer.winner_agent_id or 'draw'}   ({answer.total_steps} steps, {answer.execution_time_sec:.2f} s)"
    )
    for result in answer.agent_results:
        print(f"  {result.agent_id:20} score {result.score:g}   {result.status} {result.error_message}".rstrip())
    print(f"replay: {answer.replay_html_url}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
