"""An owner who sends program after program, and keeps what raised his score, gains nothing on the final board.

The attacker knows the game and starts from its best honest policy. He reads everything that the API tells an owner.
Where he is told the returns of single episodes, and a failure names the seed that his agent had in one, he improves
every episode by itself. Told only a score, he adds ideas that change some moves and keeps those that raised it: what an
agent has seen so far is the same in the same hidden episode, so on the public board that works, slowly.
"""

from __future__ import annotations

import inspect
import random
import re
import time

import pytest
from starlette.testclient import TestClient

from support.served import bearer, submitted

pytest.importorskip("gymnasium")

from harena import statistics
from harena.access import Rate
from harena.api.app import create_app
from harena.arena.db.models import EnvironmentKind, Scope
from harena.arena.queue.kinds import BY_NAME
from harena.arena.work import handlers, perform
from harena.http.limits import RequestLimits

LAKE, CARDS = "FrozenLake-v1", "Blackjack-v1"
# On the slippery lake the policy of value iteration; with cards the usual table, without counting.
HONEST = {
    LAKE: "(0, 3, 3, 3, 0, 0, 0, 0, 3, 1, 0, 0, 0, 2, 1, 0)[int(o)]",
    CARDS: "int(o[0] < (18 if o[2] else 17 if o[1] > 6 or o[1] == 1 else 13 if o[1] < 4 else 12))",
}
ACTIONS = {LAKE: 4, CARDS: 2}
BOLD, CAREFUL = 300, 60
"""How many of a thousand moves an idea changes: where each episode is judged by itself, and where all are at once."""
PROGRAM = """
import zlib
KNOWN, IDEAS, SHARE = {known!r}, {ideas!r}, {share}
class Agent:
    def __init__(self, seed):
        self.seed, self.seen = seed, ""
        self.ideas = IDEAS if KNOWN is None else KNOWN.get(seed, IDEAS)
    def act(self, o):
        if KNOWN is not None and self.seed not in KNOWN:
            raise RuntimeError("SEED %d" % self.seed)
        self.seen += "%s;" % (o,)
        for idea in self.ideas:
            bits = zlib.crc32(("%d %s" % (idea, self.seen)).encode())
            if bits % 1000 < SHARE:
                return bits // 1000 % {actions}
        return {honest}
"""


class Attacker:
    def __init__(self, env_id, client, token, play, submissions):
        self.env_id, self.left = env_id, submissions
        self._client, self._token, self._play = client, token, play
        self._rng = random.Random(1)
        self.named = 0
        """Episodes that he can tell apart."""
        self.best_score, self.best_id = -float("inf"), ""

    def run(self):
        honest = self._send()
        self.honest_score = honest["score"]
        returns = (honest["evaluation"] or {}).get("returns") or []
        seeds = self._harvest(len(returns))
        self.named = len(seeds)
        if seeds and self.named == len(returns):
            self._by_episode(seeds, returns)
        else:
            self._by_score()

    def _send(self, *, known=None, ideas=(), share=BOLD):
        self.left -= 1
        code = PROGRAM.format(
            known=known, ideas=tuple(ideas), share=share, actions=ACTIONS[self.env_id], honest=HONEST[self.env_id]
        )
        sent = submitted(self._client, self._token, data=code.encode(), env_id=self.env_id)
        self._play()
        told = self._client.get(f"/v1/submissions/{sent}", headers=bearer(self._token)).json()
        if told["score"] is not None and told["score"] > self.best_score:
            self.best_score, self.best_id = told["score"], sent
        return told

    def _harvest(self, episodes):
        seeds = []
        while len(seeds) < episodes and self.left > 1:
            told = self._send(known=dict.fromkeys(seeds, ()))
            found = re.search(r"episode (\d+) of .*SEED (\d+)", told["reason"], re.DOTALL)
            if found is None or int(found[1]) != len(seeds) + 1:
                break
            seeds.append(int(found[2]))
        return seeds

    def _by_episode(self, seeds, returns):
        """One idea in all episodes at once; each keeps the best that it has had."""
        best, ideas = [*returns], dict.fromkeys(seeds, ())
        while self.left > 1 and min(best) < 1:
            idea = (self._rng.randrange(1 << 30),)
            for at, value in enumerate(self._send(known=dict.fromkeys(seeds, idea))["evaluation"]["returns"]):
                if value > best[at]:
                    best[at], ideas[seeds[at]] = value, idea
        self._send(known=ideas)

    def _by_score(self):
        kept, score = (), self.honest_score
        while self.left:
            ideas = (*kept, self._rng.randrange(1 << 30))
            told = self._send(ideas=ideas, share=CAREFUL)
            if told["score"] is not None and told["score"] > score:
                kept, score = ideas, told["score"]


def overfit(new_arena, env_id, submissions, settings):
    """The attacker, and what the finals say: his best program and the honest one, by final episode. None: no finals."""
    arena = new_arena(workers=1)
    arena.store.environments.put(env_id, EnvironmentKind.VERIFIED, settings=settings)
    secrets = {"secret": b"season" * 6, "final_secret": b"second" * 6}
    taken = inspect.signature(arena.store.seasons.start).parameters
    season = arena.store.seasons.start(env_id, "season 1", **{k: v for k, v in secrets.items() if k in taken})
    _, attacker = arena.store.keys.create("attacker", [Scope.READ, Scope.SUBMIT])
    _, host = arena.store.keys.create("host", [Scope.ADMIN])

    def play(kind="evaluate"):
        while (job := arena.queue.claim(kind, "worker")) is not None:
            commit = handlers.handler(arena, BY_NAME[kind])(job, lambda: False)
            with arena.store.begin():
                arena.queue.finish(job)
                commit()

    often = Rate(per_s=1e6, burst=1e6)
    limits = RequestLimits(read=often, write=often, upload=often)
    app = create_app(arena, loopback=False, allowed_hosts=["testserver"], limits=limits)
    with TestClient(app, client=("127.0.0.1", 50000)) as client:
        attack = Attacker(env_id, client, attacker, play, submissions)
        attack.run()
        path = f"/v1/seasons/{season.id}"
        told = client.post(
            f"/v1/submissions/{attack.best_id}/finalist", headers=bearer(attacker), json={"chosen": True}
        )
        assert told.json()["finalist"]
        code = PROGRAM.format(known=None, ideas=(), share=BOLD, actions=ACTIONS[env_id], honest=HONEST[env_id])
        honest_id = submitted(client, host, data=code.encode(), env_id=env_id)
        play()
        client.post(f"{path}/freeze", headers=bearer(host), json={"frozen": True})
        client.post(f"{path}/finalists", headers=bearer(host), json={})
        play("final")
        assert client.post(f"{path}/end", headers=bearer(host)).status_code == 200
        results = [client.get(f"/v1/submissions/{one}").json()["final_result"] for one in (attack.best_id, honest_id)]
    return attack, [{at: [value] for at, value in enumerate(one["returns"])} for one in results]


def check(new_arena, env_id, submissions, settings):
    began = time.monotonic()
    attack, finals = overfit(new_arena, env_id, submissions, settings)
    public = attack.best_score - attack.honest_score
    print(
        f"\n{env_id}: {submissions} submissions in {time.monotonic() - began:.0f} s, public board "
        f"{attack.honest_score:g} -> {attack.best_score:g} ({public:+.2f}), {attack.named} episodes told apart"
    )
    assert finals is not None, "the public board decides"
    gain = statistics.paired_difference(*finals)
    print(
        f"final board {gain.value:+.3f}, 95 % interval {gain.low:+.3f} to {gain.high:+.3f}, {len(finals[0])} episodes"
    )
    assert attack.named == 0
    assert gain.low <= 0, "the attacker is better than the honest policy, for sure enough"


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Results need not wait for their moment."""
    if hasattr(perform, "RELEASE_S"):
        monkeypatch.setattr(perform, "RELEASE_S", 1e-6)


@pytest.mark.parametrize("env_id", [LAKE, pytest.param(CARDS, marks=pytest.mark.thorough)])
def test_an_adaptive_attacker_gains_nothing_on_the_final_board(new_arena, env_id):
    check(new_arena, env_id, 8, {"practice_episodes": 1, "final_episodes": 40})


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("env_id", [LAKE, pytest.param(CARDS, marks=pytest.mark.thorough)])
def test_a_hundred_submissions_of_an_adaptive_attacker_gain_nothing_on_the_final_board(new_arena, env_id):
    check(new_arena, env_id, 100, {})
