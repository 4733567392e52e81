"""A script that steps the environment itself and says what it scored: shown apart, as self-reported."""

import json
import sys

import gymnasium

env = gymnasium.make(sys.argv[1])
returns = []
for seed in range(5):
    observation, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        action = int(observation[2] + 0.5 * observation[3] > 0)
        observation, reward, ended, cut, _ = env.step(action)
        total, over = total + float(reward), ended or cut
    returns.append(total)
print(json.dumps({"score": sum(returns) / len(returns), "metrics": {"episodes": len(returns)}}))
