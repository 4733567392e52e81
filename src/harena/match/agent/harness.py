"""Runs an agent inside its box, beside spaces.py. Standard library only, with numpy if it is available.

None of this enforces isolation: it shares a process with the agent, and the host trusts nothing that it sends. Packets
from the host, by their first byte: F a file (f: more of it), I how to start (answered r), N another game: new agent
objects (answered r), A one observation (answered a), B observations of several games at once (answered b), M the
beginning of a packet that was too long. An x from here, with JSON, is the last: why the agent cannot go on.

Games that are played at once have an agent object each, with its own seed and random numbers: `random` and
`numpy.random` have one state in a process, so their functions are patched to use the state of the current game.

One file, however long: it is mounted into boxes, and sent to boxes of other machines, as one module.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import json
import linecache
import os
import random
import socket
import struct
import sys
import traceback

try:
    import numpy.random  # here, before the first agent: numpy itself imports it late, and unseeded
except ImportError:
    numpy = None

from harena_spaces import SpaceError, decode_many, encode_many, from_description  # spaces.py, as the box has it

FOLDER = "/workspace/agent"
MAX_PACKET = 400_000
MAX_ANSWER = 60_000
MAX_REASON = 4000
LOAD_SEED = 0
"""Seed of the common random generators while modules of an agent that plays several games are loaded."""


class CommonDice:
    """State of the process-wide random generators, one for each game of a batch."""

    def __init__(self, seeds):
        self.seeds = seeds
        self.game = None
        """The game whose agent is being asked; none while modules are loaded."""
        self._random, self._numpy = {}, {}
        own = self.of_random()
        self._replace([random], random._inst, own)
        if numpy is not None:
            mtrand = sys.modules["numpy.random.mtrand"]
            own = self.of_numpy()
            self._replace([numpy.random, mtrand], mtrand._rand, own)
            for module in (numpy.random, mtrand):
                module.seed = self._asking(own, "seed")
                module.sample = module.ranf = self._asking(own, "random_sample")

    def seed(self):
        return LOAD_SEED if self.game is None else self.seeds[self.game]

    def begin(self):
        """Start after the modules are loaded; random numbers that they used do not count."""
        self.game = 0
        self._random.clear()
        self._numpy.clear()

    def of_random(self):
        def dice():
            if self.game not in self._random:
                self._random[self.game] = random.Random(self.seed())
            return self._random[self.game]

        return dice

    def of_numpy(self):
        def dice():
            if self.game not in self._numpy:
                self._numpy[self.game] = numpy.random.RandomState(self.seed())
            return self._numpy[self.game]

        return dice

    def _replace(self, modules, common, own):
        for module in modules:
            for name, function in list(vars(module).items()):
                if getattr(function, "__self__", None) is common:
                    setattr(module, name, self._asking(own, name))

    def _asking(self, own, name):
        def function(*arguments, **options):
            return getattr(own(), name)(*arguments, **options)

        function.__name__ = name
        return function


class Agent:
    """Uniform interface to all forms of agents: an `act` for each game, and perhaps an `act_batch`."""

    def __init__(self, module, options, dice=None):
        self.module, self.options, self.dice = module, options, dice
        self.slots = {}
        self.make = self.maker()

    def maker(self):
        for name in ("Agent", "create_agent", "act", "agent"):
            found = getattr(self.module, name, None)
            if not callable(found):
                continue
            if name in ("act", "agent"):
                if "configuration" in list(parameters_of(found))[1:2]:
                    return lambda options, act=found: (kaggle_agent(act, options), None, None)
                return lambda options, act=found: (self.wanted(act, options), None, None)
            return lambda options, make=found: self.methods(make(**arguments_for(make, options)), options)
        last = last_function(self.module)
        if last is not None:  # as Kaggle finds an agent
            return lambda options: (kaggle_agent(last, options), None, None)
        raise Unusable(
            "the file defines no `class Agent`, no `create_agent`, and no function `act` or `agent`", kind="load"
        )

    def methods(self, instance, options):
        for name in ("act", "get_action", "predict"):
            method = getattr(instance, name, None)
            if callable(method):
                break
        else:
            if not callable(instance):
                raise Unusable(f"{type(instance).__name__} has no method act(observation)", kind="load")
            method, name = instance, "act"
        act = self.wanted(method, options)
        if name == "predict":  # as Stable-Baselines has it: the action, and a state that we do not keep
            plain = act

            def act(observation):
                answer = plain(observation)
                return answer[0] if isinstance(answer, tuple) and len(answer) == 2 else answer

        return act, getattr(instance, "act_batch", None), getattr(instance, "reset", None)

    def wanted(self, function, options):
        """act(observation), or act(observation, player_id or config) by the names of its other parameters."""
        extra = {
            name: options[name]
            for position, (name, parameter) in enumerate(parameters_of(function).items())
            if position and name in options and parameter.default is parameter.empty
        }
        if not extra:
            return function
        return lambda observation: function(observation, **extra)

    def slot(self, number):
        """Agent object of one game, created and reset when the game first needs it."""
        if number not in self.slots:
            options = self.options
            if self.dice:
                self.dice.game = number
                options = {**options, "seed": self.dice.seeds[number]}
            self.slots[number] = self.make(options)
            reset = self.slots[number][2]
            if callable(reset):
                reset()
        return self.slots[number]


class Struct(dict):
    """A dict whose keys are attributes too, as Kaggle's agents get it."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


KAGGLE = {
    "connect_four": {"rows": 6, "columns": 7, "inarow": 4, "episodeSteps": 1000},
    "tictactoe": {"episodeSteps": 10},
    "rps": {"signs": 3, "tieRewardThreshold": 20, "episodeSteps": 1000},
}
"""What Kaggle's configuration says of the same games."""


def last_function(module):
    """The last function that the module itself defines and that takes an observation, or also a configuration."""
    for found in reversed(list(vars(module).values())):
        if inspect.isfunction(found) and found.__module__ == module.__name__:
            given = parameters_of(found).items()
            required = [
                name for name, one in given if one.default is one.empty and one.kind <= one.POSITIONAL_OR_KEYWORD
            ]
            return found if len(required) == 2 or required in (["observation"], ["obs"]) else None
    return None


def kaggle_agent(function, options):
    """act(observation) of an agent that was written for kaggle-environments."""
    game = options["environment"].partition("-v")[0]
    mark = options["player_id"] + 1
    configuration = Struct({"actTimeout": 5, "agentTimeout": 60, **KAGGLE.get(game, {}), **options["config"]})
    count = len(parameters_of(function))
    asked = -1

    def act(seen):
        nonlocal asked
        asked += 1
        told = Struct(remainingOverageTime=60, step=asked)
        if game in ("connect_four", "tictactoe"):
            told.board = [mark if cell == 1 else 3 - mark if cell else 0 for cell in map(int, seen)]
            told.mark, told.step = mark, sum(map(bool, told.board))
        elif game == "rps":
            told.step, told.reward = int(seen["round"]), 0
            if told.step:
                told.lastOpponentAction = int(seen["theirs"])
        else:
            told.update(seen if isinstance(seen, dict) else {"observation": seen})
        return function(told, configuration) if count > 1 else function(told)

    return act


class Unusable(Exception):
    def __init__(self, text, kind):
        super().__init__(text)
        self.kind = kind


PARAMETERS = {}


def parameters_of(function):
    """Parameters of a function, cached because reading a signature takes longer than most moves."""
    key = getattr(function, "__func__", function)
    try:
        if key not in PARAMETERS:
            PARAMETERS[key] = inspect.signature(function).parameters
        return PARAMETERS[key]
    except (TypeError, ValueError):
        return {}


def arguments_for(function, options):
    """Options that match the function's parameters; all offered options if it takes **kwargs."""
    parameters = parameters_of(function)
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: value for name, value in options.items() if name in parameters or (takes_all and name in OFFERED)}


class NamedLoader(importlib.machinery.SourceFileLoader):
    """Loads a file under the name that its author gave it, for tracebacks; the file itself is called agent.py."""

    def __init__(self, name, path, shown):
        super().__init__(name, path)
        self.shown = shown

    def source_to_code(self, data, path, **options):
        code = super().source_to_code(data, self.shown, **options)
        text = importlib.util.decode_source(data)
        linecache.cache[self.shown] = len(text), None, text.splitlines(True), self.shown
        return code


def load(start):
    path = os.path.join(FOLDER, start["entry"])
    sys.path[:0] = dict.fromkeys((os.path.dirname(path), FOLDER))
    os.chdir(FOLDER)
    name = os.path.splitext(os.path.basename(start["entry"]))[0]
    shown = start.get("shown") or start["entry"]
    loader = None if shown == start["entry"] else NamedLoader(name, path, os.path.join(FOLDER, shown))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


PLAIN = ("player_id", "seats", "environment", "seed", "config")
OFFERED = (*PLAIN, "observation_space", "action_space")
"""Documented options; other names are passed only to functions that name them."""


def options_of(start):
    """Options that a constructor may request by name, and the spaces."""
    options = {key: start[key] for key in PLAIN}
    options["env"] = options["env_id"] = start["environment"]
    options["observation_space"] = space_of(start["observation_space"])
    options["action_space"] = space_of(start["action_space"])
    return options


SPACES = []


def space_of(description):
    """Return the same object for the same description, since all games of a series have the same spaces."""
    for known, space in SPACES:
        if known == description:
            return space
    SPACES.append((description, from_description(description)))
    return SPACES[-1][1]


def become_command(stdio, start):
    """Become an agent in another language, with a stream as stdin and stdout."""
    os.chdir(FOLDER)
    for fd in (0, 1):
        os.dup2(stdio, fd)
    os.closerange(3, 64)
    for name in os.listdir("."):
        if os.path.isfile(name):
            os.chmod(name, 0o755)
    argv = start["command"]
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"{argv[0]} could not be started: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)


class Socket:
    def __init__(self):
        self.sock = socket.socket(fileno=5)
        self.room = bytearray(MAX_PACKET + 64)
        self.parts = []

    def send(self, data):
        head, body = data[:1], data[1:]
        while len(body) > MAX_ANSWER:
            self.sock.send(b"M" + body[:MAX_ANSWER])
            body = body[MAX_ANSWER:]
        self.sock.send(head + body)

    def give_up(self, kind, text):
        flush()
        self.send(b"x" + reason_of(kind, text))
        os._exit(1)


def reason_of(kind, text):
    return json.dumps({"fault": kind, "text": text[-MAX_REASON:]}).encode("ascii")


class Lines:
    """The line protocol of docs/agents.md. What the agent prints goes to the log."""

    def __init__(self):
        self.lines = os.fdopen(os.dup(0), "rb")
        self.out = os.dup(1)
        os.dup2(2, 1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)

    def send(self, message):
        self.write(json.dumps(message).encode("ascii"))

    def write(self, line):
        line += b"\n"
        while line:
            line = line[os.write(self.out, line) :]

    def give_up(self, kind, text):
        flush()
        self.write(reason_of(kind, text))
        os._exit(1)


def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            pass


def described(error):
    """End of the traceback, without our own frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == described.__code__.co_filename:
        trace = trace.tb_next
    try:
        traceback.print_exception(type(error), error, trace)
        where = place_of(traceback.extract_tb(trace))
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
        return text.splitlines()[-1] + where + offer(error)
    except BaseException:
        return type(error).__name__


def offer(error):
    """How the host can give the agent a package that its box lacks."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return f"; offer it with HARENA_AGENT_PACKAGES={missing.partition('.')[0]}" if missing else ""


def place_of(frames):
    """Line of the agent's own file where it failed, and the function it had called."""
    if not frames:
        return ""
    last = frames[-1]
    own = next((frame for frame in reversed(frames) if frame.filename.startswith(FOLDER + "/")), None)
    if own is None or own is last:
        return f" ({shown_path(last)}, line {last.lineno})"
    return f" ({shown_path(own)}, line {own.lineno}; raised in {shown_path(last)}, line {last.lineno})"


def shown_path(frame):
    if frame.filename.startswith(FOLDER + "/"):
        return os.path.relpath(frame.filename, FOLDER)
    return os.path.basename(frame.filename)


def kind_of(error, otherwise):
    return "memory" if isinstance(error, MemoryError) else otherwise


def write_file(data, more):
    (length,) = struct.unpack_from("<I", data, 1)
    path = os.path.join(FOLDER, bytes(data[5 : 5 + length]).decode())
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "ab" if more else "wb") as file:
        file.write(data[5 + length :])


def start_agent(sock):
    """Receive the files and the start message. Returns the agent and its spaces, or becomes the command."""
    os.makedirs(FOLDER)
    while True:
        data, fds, _, _ = socket.recv_fds(sock.sock, MAX_PACKET + 64, 1)
        if not data:
            os._exit(0)
        if data[0] == 73:  # I
            break
        write_file(data, data[0] == 102)
    start = json.loads(data[1:])
    if start["command"]:
        become_command(fds[0], start)
    sock.start = start
    return new_game(sock, start, None)


def new_game(sock, start, module):
    """Create the agent and its two spaces. An agent that uses the common random generators gets the same numbers in the
    same game: a module that is kept for several games is always loaded with the same state, and each game starts with
    its own."""
    options = options_of(start)
    try:
        dice = None
        if module is None:
            throw(LOAD_SEED if start["stays"] else start["seed"])
            if start["seeds"]:
                dice = CommonDice(start["seeds"])
            module = load(start)
        if dice is None:
            throw(start["seed"])
        else:
            dice.begin()
        agent = Agent(module, options, dice)
        agent.slot(0)
    except Unusable as error:
        sock.give_up(error.kind, str(error))
    except SyntaxError as error:
        described(error)
        place = f"{os.path.basename(error.filename or '')}, line {error.lineno}"
        sock.give_up("load", f"{type(error).__name__}: {error.msg} ({place})")
    except BaseException as error:
        sock.give_up(kind_of(error, "load"), described(error))
    return agent, options["observation_space"], options["action_space"]


def throw(seed):
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed)


def encoded(sock, action, value):
    try:
        return action.encode(value)
    except SpaceError as error:
        sock.give_up("illegal", str(error))


def act_in_slots(sock, agent, observation, action, data):
    (count,) = struct.unpack_from("<I", data, 1)
    numbers = struct.unpack_from(f"<{count}I", data, 5)
    observations = decode_many(observation, data, 5 + 4 * count, count)
    act_batch = agent.slots[0][1]
    if callable(act_batch):
        answers = list(act_batch(observations))
        if len(answers) != count:
            sock.give_up("illegal", f"act_batch returned {len(answers)} actions for {count} observations")
    else:
        slots, dice, answers = agent.slots, agent.dice, []
        for number, value in zip(numbers, observations):
            act = (slots.get(number) or agent.slot(number))[0]
            dice.game = number
            answers.append(act(value))
    try:
        sock.send(b"b" + encode_many(action, answers))
    except SpaceError as error:
        sock.give_up("illegal", str(error))


REHEARSAL = """
import random
class Agent:
    def __init__(self, player_id): self.dice = random.Random(player_id)
    def act(self, observation): return int(observation[0])
"""


def rehearse():
    """Load and ask an agent of our own, so that memory pages that any agent writes to are copied in advance. Nothing of
    it remains."""
    path, modules = sys.path[:], set(sys.modules)
    os.makedirs(FOLDER)
    write_file(b"F" + struct.pack("<I", 8) + b"agent.py" + REHEARSAL.encode(), False)
    box = {"kind": "box", "shape": [2], "dtype": "float32", "low": None, "high": None}
    start = dict.fromkeys(("player_id", "seats", "seed", "seeds", "stays"), 0)
    start |= {"entry": "agent.py", "environment": "", "config": {}, "observation_space": box}
    start["action_space"] = {"kind": "discrete", "n": 2, "start": 0}
    agent, observation, action = new_game(None, json.loads(json.dumps(start)), None)
    for _ in range(2):
        action.encode(agent.slot(0)[0](observation.decode_all(bytearray(8))))
    os.remove(os.path.join(FOLDER, "agent.py"))
    os.chdir("/")
    os.rmdir(FOLDER)
    sys.path[:] = path
    importlib.invalidate_caches()
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    PARAMETERS.clear()
    SPACES.clear()


def main():
    sys.stdout.reconfigure(line_buffering=True)  # a log is wanted most when its writer was killed
    sock = Socket()
    rehearse()
    agent, observation, action = start_agent(sock)
    act = agent.slot(0)[0]
    raw, room = sock.sock, sock.room
    receive_into, send = raw.recv_into, raw.send
    decode, encode = observation.decode_all, action.encode
    sock.send(b"r")
    try:
        while True:
            count = receive_into(room)
            if count and room[0] == 65 and not sock.parts:  # A: the usual case, without detours
                answer = act(decode(room[1:count]))
                try:
                    send(b"a" + encode(answer))
                except SpaceError as error:
                    sock.give_up("illegal", str(error))
                continue
            if not count:
                os._exit(0)
            if room[0] == 77:
                sock.parts.append(bytes(room[1:count]))
                continue
            data = room[:count]
            if sock.parts:  # its end: put it together
                data = data[:1] + b"".join(sock.parts) + data[1:]
                sock.parts = []
            if data[0] == 65:
                sock.send(b"a" + encoded(sock, action, act(decode(data[1:]))))
            elif data[0] == 66:  # B
                act_in_slots(sock, agent, observation, action, data)
            elif data[0] == 78:  # N
                sock.start.update(json.loads(bytes(data[1:])))  # only what is new is sent
                agent, observation, action = new_game(sock, sock.start, agent.module)
                act, decode, encode = agent.slot(0)[0], observation.decode_all, action.encode
                sock.send(b"r")
    except SystemExit as error:
        sock.give_up("crash", f"the agent ended itself: sys.exit({error.code!r})")
    except BaseException as error:
        sock.give_up(kind_of(error, "crash"), described(error))


def main_in_image(entry):
    """The same for an image: its own Python runs this, and the host speaks by lines."""
    global FOLDER
    FOLDER = os.path.dirname(entry)
    lines = Lines()
    sys.stdout.reconfigure(line_buffering=True)
    agent = module = None
    try:
        for line in lines.lines:
            message = json.loads(line)
            if message["type"] == "init":
                start = {**message, "entry": os.path.basename(entry), "seeds": [], "stays": False}
                agent, observation, action = new_game(lines, start, module)
                module = agent.module
                lines.send({"ready": True})
            elif message["type"] == "act":
                value = agent.slot(0)[0](observation.from_json(message["observation"]))
                value = action.decode_all(encoded(lines, action, value))
                lines.send({"action": action.to_json(value)})
            elif message["type"] == "end":
                break
    except SystemExit as error:
        lines.give_up("crash", f"the agent ended itself: sys.exit({error.code!r})")
    except BaseException as error:
        lines.give_up(kind_of(error, "crash"), described(error))
    flush()
    os._exit(0)
