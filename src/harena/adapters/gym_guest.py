"""Runs in a box: makes an environment of Gymnasium or PettingZoo and steps it on orders of the host. The host imports
the functions about layouts.

A packet from the host is a letter and JSON; numbers go through shared memory whose layout both sides work out from the
description of the spaces. What the environment does here is its own business: the host reads fixed shapes of numbers,
and JSON through a cap.
"""

from __future__ import annotations

import base64
import json
import mmap
import socket

import numpy as np

ALIGN = 64
MAX_PACKET = 150_000
MAX_INFO = 60_000


def describe(space):
    """A space of Gymnasium as JSON data."""
    kind = type(space).__name__
    if kind == "Discrete":
        return {"kind": kind, "n": int(space.n), "start": int(space.start)}
    if kind == "Box":
        return {"kind": kind, "dtype": str(space.dtype), "low": _array(space.low), "high": _array(space.high)}
    if kind == "MultiBinary":
        return {"kind": kind, "shape": list(space.shape)}
    if kind == "MultiDiscrete":
        return {"kind": kind, "nvec": _array(space.nvec), "start": _array(space.start)}
    if kind == "Dict":
        return {"kind": kind, "parts": {str(key): describe(part) for key, part in space.spaces.items()}}
    if kind == "Tuple":
        return {"kind": kind, "parts": [describe(part) for part in space.spaces]}
    raise TypeError(f"spaces of the kind {kind} are not supported")


def _array(values):
    values = np.ascontiguousarray(values)
    first = values.reshape(-1)[:1]
    same = bool(values.size) and bool((values == first).all())
    data = first if same else values
    return {
        "dtype": str(values.dtype),
        "shape": list(values.shape),
        "same": same,
        "data": base64.b64encode(data.tobytes()).decode(),
    }


def leaves(space, batch=None):
    """Type and shape of each array of a value, in order. `batch`: that many values at once."""
    kind = type(space).__name__
    if kind in ("Dict", "Tuple"):
        parts = space.spaces.values() if kind == "Dict" else space.spaces
        return [leaf for part in parts for leaf in leaves(part, batch)]
    shape = () if kind == "Discrete" else space.shape
    return [(np.dtype(space.dtype), tuple(shape) if batch is None else (batch, *shape))]


def views(memory, parts):
    """Arrays in the memory, one for each leaf."""
    found, at = [], 0
    for dtype, shape in parts:
        count = int(np.prod(shape, dtype=np.int64))
        found.append(np.frombuffer(memory, dtype, count, at).reshape(shape))
        at += -(-count * dtype.itemsize // ALIGN) * ALIGN
    return found


def size(parts):
    used = (-(-int(np.prod(shape, dtype=np.int64)) * dtype.itemsize // ALIGN) * ALIGN for dtype, shape in parts)
    return max(sum(used), ALIGN)


def put(space, arrays, value):
    """Write a value into its arrays, which are taken from the front."""
    kind = type(space).__name__
    if kind == "Dict":
        for key, part in space.spaces.items():
            put(part, arrays, value[key])
    elif kind == "Tuple":
        for part, item in zip(space.spaces, value, strict=False):
            put(part, arrays, item)
    else:
        arrays.pop(0)[...] = value


def take(space, arrays):
    """The value in its arrays, copied."""
    kind = type(space).__name__
    if kind == "Dict":
        return {key: take(part, arrays) for key, part in space.spaces.items()}
    if kind == "Tuple":
        return tuple(take(part, arrays) for part in space.spaces)
    array = arrays.pop(0)
    return array[()] if array.shape == () else array.copy()


def plain(value, depth=6):
    """What of an info can be said in JSON: numbers, texts, lists and arrays of them."""
    if isinstance(value, np.ndarray):
        value = value.tolist() if value.dtype.kind in "biuf" else [plain(item, depth - 1) for item in value.tolist()]
    if isinstance(value, np.generic):
        value = value.item()
    if depth and isinstance(value, dict):
        return {str(key): plain(item, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, (list, tuple)):
        return [plain(item, depth - 1) for item in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)[:200]


def make(order):
    """The environment of an order, single or vectorised."""
    import gymnasium as gym

    count, arguments = order["num_envs"], order["arguments"]
    if order["source"]:
        factory = from_source(order)
        if count is None:
            return factory(**arguments)
        return gym.vector.SyncVectorEnv([lambda: factory(**arguments)] * count)
    if count is None:
        return gym.make(order["id"], **arguments)
    return gym.make_vec(order["id"], num_envs=count, vectorization_mode=order["vectorization"], **arguments)


def from_source(order):
    names = {"__name__": "boxed_environment"}
    exec(compile(order["source"], order["name"], "exec"), names)
    return names[order["factory"]]


class EnvServer:
    def __init__(self, sock, order):
        self.sock, self.env = sock, make(order)
        env, count = self.env, order["num_envs"]
        single = env if count is None else None
        self.observations = single.observation_space if single else env.single_observation_space
        self.actions = single.action_space if single else env.single_action_space
        self.vector = count is not None
        mode = env.metadata.get("autoreset_mode") if self.vector else None
        self.say(
            {
                "observation": describe(self.observations),
                "action": describe(self.actions),
                "autoreset": getattr(mode, "name", None),
                "spec": getattr(env.spec, "id", None),
            }
        )
        parts = layout(self.observations, self.actions, count)
        _, descriptors, _, _ = socket.recv_fds(sock, 16, 1)
        arrays = views(mmap.mmap(descriptors[0], size(parts)), parts)
        self.rewards, self.terminated, self.truncated = arrays[:3]
        seen = len(leaves(self.observations))
        self.seen, self.acted = arrays[3 : 3 + seen], arrays[3 + seen :]

    def say(self, data):
        self.sock.send(b"k" + json.dumps(data).encode() if data else b"k")

    def show(self, observation, info):
        put(self.observations, list(self.seen), observation)
        told = plain(info) if info else None
        if told and len(json.dumps(told)) > MAX_INFO:
            told = {"left_out": "the info is too large"}
        self.say(told)

    def reset(self, order):
        options = {} if order.get("options") is None else {"options": order["options"]}
        self.show(*self.env.reset(seed=order["seed"], **options))

    def step(self):
        action = take(self.actions, list(self.acted))
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.rewards[...], self.terminated[...], self.truncated[...] = reward, terminated, truncated
        self.show(observation, info)

    def serve(self):
        while packet := self.sock.recv(MAX_PACKET):
            if packet[:1] == b"s":
                self.step()
            elif packet[:1] == b"r":
                self.reset(json.loads(packet[1:]))
            else:
                return


def layout(observations, actions, count):
    """Every array of the shared memory: reward, ends, observation, action."""
    shape = () if count is None else (count,)
    head = [(np.dtype("float64"), shape), (np.dtype("uint8"), shape), (np.dtype("uint8"), shape)]
    return head + leaves(observations, count) + leaves(actions, count)


def table_layout(spaces):
    """Every array of the shared memory of several agents, whose spaces are pairs of observation and action: who acts,
    the order of the agents, and for each agent its rewards and ends, its observation and its action."""
    parts = [(np.dtype("int32"), ()), (np.dtype("int32"), (len(spaces),))]
    for observations, actions in spaces:
        parts += [(np.dtype("float64"), (2,)), (np.dtype("uint8"), (2,)), *leaves(observations), *leaves(actions)]
    return parts


class Table:
    """The arrays of several agents, by name."""

    def __init__(self, arrays, agents, spaces):
        self.acting, self.order = arrays[:2]
        self.agents, self.rows, at = agents, {}, 2
        for agent, (observations, actions) in zip(agents, spaces, strict=True):
            seen, acted = len(leaves(observations)), len(leaves(actions))
            middle = at + 2 + seen
            self.rows[agent] = (*arrays[at : at + 2], arrays[at + 2 : middle], arrays[middle : middle + acted])
            at = middle + acted
        self.spaces = dict(zip(agents, spaces, strict=True))

    def put_action(self, agent, action):
        put(self.spaces[agent][1], list(self.rows[agent][3]), action)

    def action(self, agent):
        return take(self.spaces[agent][1], list(self.rows[agent][3]))

    def observation(self, agent):
        return take(self.spaces[agent][0], list(self.rows[agent][2]))


class TableServer(EnvServer):
    """Steps an environment of PettingZoo: agents in turn (AEC), or all at once."""

    def __init__(self, sock, order):
        import importlib

        from pettingzoo import AECEnv

        self.sock = sock
        module, _, name = order["id"].rpartition(":")
        factory = from_source(order) if order["source"] else getattr(importlib.import_module(module), name)
        env = self.env = factory(**order["arguments"])
        self.in_turn = isinstance(env, AECEnv)
        agents = list(env.possible_agents)
        spaces = [(env.observation_space(agent), env.action_space(agent)) for agent in agents]
        described = [[describe(part) for part in pair] for pair in spaces]
        self.say({"in_turn": self.in_turn, "agents": [str(agent) for agent in agents], "spaces": described})
        parts = table_layout(spaces)
        _, descriptors, _, _ = socket.recv_fds(sock, 16, 1)
        self.table = Table(views(mmap.mmap(descriptors[0], size(parts)), parts), agents, spaces)

    def reset(self, order):
        options = {} if order.get("options") is None else {"options": order["options"]}
        found = self.env.reset(seed=order["seed"], **options)
        self.tell(*(({}, {}, {}, {}) if self.in_turn else (found[0], {}, {}, {})), None if self.in_turn else found[1])

    def step(self):
        table = self.table
        if not self.in_turn:
            acting = [table.agents[at] for at in table.order if at >= 0]
            self.tell(*self.env.step({agent: table.action(agent) for agent in acting}))
            return
        agent = self.env.agent_selection
        self.env.step(table.action(agent) if int(table.acting) >= 0 else None)
        self.tell({}, {}, {}, {}, None)

    def tell(self, observations, rewards, terminated, truncated, infos):
        """Write what every agent gets into the memory, and send the infos."""
        env, table = self.env, self.table
        if self.in_turn:
            rewards, terminated, truncated, infos = env.rewards, env.terminations, env.truncations, env.infos
            observations = {agent: env.observe(agent) for agent in env.agents}
            table.acting[...] = table.agents.index(env.agent_selection) if env.agents else -1
        for agent, observation in observations.items():
            scores, ends, seen, _ = table.rows[agent]
            total = env._cumulative_rewards[agent] if self.in_turn else 0.0
            scores[...] = rewards.get(agent, 0.0), total
            ends[...] = terminated.get(agent, False), truncated.get(agent, False)
            put(table.spaces[agent][0], list(seen), observation)
        order = [table.agents.index(agent) for agent in env.agents]
        table.order[...] = order + [-1] * (len(table.agents) - len(order))
        told = plain({"agents": [str(agent) for agent in observations], "infos": infos})
        if len(json.dumps(told)) > MAX_INFO:
            told["infos"] = {agent: {"left_out": "the info is too large"} for agent in infos}
        self.say(told)


def main():
    sock = socket.socket(fileno=5)
    try:
        order = json.loads(sock.recv(MAX_PACKET))
        (TableServer if order.get("table") else EnvServer)(sock, order).serve()
    except BaseException as error:
        sock.send(b"e" + f"{type(error).__name__}: {error}".encode("utf-8", "replace")[:2000])
        raise


if __name__ == "__main__":
    main()
