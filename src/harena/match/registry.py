"""Registry of games by id. An id from a client selects among installed games, and never names code to import.

- built in, and entry points of the group "harena.games": "pong-v1"; a bare name ("pong") means its newest version
- Gymnasium: "CartPole-v1", or "gymnasium/CartPole-v1"; PettingZoo: "pettingzoo/classic/connect_four_v3"; OpenSpiel:
  "openspiel/kuhn_poker", or "kuhn_poker" if nothing else has that name
- with parameters: "go(board_size=9)"; they are part of the full id, and a config may add to them
- "module:factory" imports that module, so it is only for who runs the command: refused unless `trust` was called with
  it or the variable HARENA_GAMES lists it (comma separated). Never call `trust` with what came over the network.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, cast

from harena.errors import HarenaError, SpecError
from harena.match import variables
from harena.match.game import Game, GameError, GameInfo

BUILT_IN = {
    "connect_four-v1": "harena.match.games.connect_four:ConnectFour",
    "leduc-v1": "harena.match.games.leduc:Leduc",
    "pong-v1": "harena.match.games.pong:Pong",
    "rps-v1": "harena.match.games.rps:RockPaperScissors",
    "tictactoe-v1": "harena.match.games.tictactoe:TicTacToe",
    "tron-v1": "harena.match.games.tron:Tron",
}
ALIASES = {
    "connect4": "connect_four",
    "connectfour": "connect_four",
    "connectx": "connect_four",
    "leduc_holdem": "leduc",
    "leduc_poker": "leduc",
    "light_cycles": "tron",
    "rock_paper_scissors": "rps",
    "tic_tac_toe": "tictactoe",
}
ADAPTERS = {
    "gymnasium": "harena.match.adapters.gymnasium",
    "pettingzoo": "harena.match.adapters.pettingzoo",
    "openspiel": "harena.match.adapters.openspiel",
}
"""Each has resolve(name) -> the full id, and make(name, config) -> Game."""
ENTRY_POINTS = "harena.games"
MAX_ID = 200

_VERSIONED = re.compile(r"(?P<name>.+)-v(?P<version>\d{1,6})", re.ASCII)
_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)
_WITH_PARAMETERS = re.compile(r"(?P<id>[^()]+)\((?P<parameters>[^()]*)\)")
_PARAMETER = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>[\w.+-]+)\s*", re.ASCII)
_Factory = Callable[..., Game]


class UnknownGame(HarenaError):
    """No such game here; the message suggests the nearest names."""


class MissingExtra(UnknownGame):
    """The package of a known game is missing; the message has the line that installs it."""

    def __init__(self, game_id: str, package: str, extra: str) -> None:
        super().__init__(f"{game_id} needs {package}: pip install 'harena[{extra}]'")


def resolve(game_id: str) -> str:
    """Return the full id, with its version and its parameters, of the game that `make` would create."""
    if not isinstance(game_id, str) or not 0 < len(game_id) <= MAX_ID:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UnknownGame(f"a game's id is a text of 1 to {MAX_ID} characters")
    bare, parameters = split_parameters(game_id)
    return _resolve(bare) + _shown(parameters)


def _resolve(game_id: str) -> str:
    if game_id in BUILT_IN:
        return game_id
    if ":" in game_id:
        _check_trusted(game_id)
        return game_id
    prefix, _, name = game_id.partition("/")
    if prefix in ADAPTERS and name:
        return _adapter(prefix).resolve(name)
    known = _own_ids()
    own = _newest(_normal(game_id), known)
    if own is not None:
        return own
    if importlib.util.find_spec("gymnasium") is None:
        hint = "; Gymnasium environments need: pip install 'harena[gym]'"
        raise unknown(game_id, known, hint)
    gymnasium = _adapter("gymnasium")
    found = gymnasium.find(game_id)
    if found is not None:
        return found
    spiel = openspiel_ids()
    if game_id in spiel:
        return _adapter("openspiel").resolve(game_id)
    raise unknown(game_id, [*known, *gymnasium.ids(), *spiel])


def make(game_id: str, config: Mapping[str, Any] | None = None) -> Game:
    """Create a game, whose `id` is the full one. An unknown config key raises a SpecError that names the known keys."""
    full = resolve(game_id)
    bare, parameters = split_parameters(full)
    game = _make(bare, {**parameters, **_plain(full, config)})
    if parameters:
        game.id = full
    return game


def _make(full: str, config: dict[str, Any]) -> Game:
    if full in BUILT_IN:
        return _build(full, cast(_Factory, _load(BUILT_IN[full])), config)
    if ":" in full:
        return _build(full, _trusted_factory(full), config)
    point = _entry_points().get(full)
    if point is not None:
        return _build(full, _of_entry_point(point), config)
    prefix, _, name = full.partition("/")
    if prefix in ADAPTERS:
        return _adapter(prefix).make(name, config)
    return _adapter("gymnasium").make(full, config)


def split_parameters(game_id: str) -> tuple[str, dict[str, Any]]:
    """Split "go(board_size=9)" into the id and its parameters: numbers, switches (true, false) and bare words."""
    match = _WITH_PARAMETERS.fullmatch(game_id.strip())
    if match is None:
        if "(" in game_id or ")" in game_id:
            raise UnknownGame(f"{game_id!r:.80}: parameters are written as in go(board_size=9)")
        return game_id, {}
    found: dict[str, Any] = {}
    for part in filter(str.strip, match["parameters"].split(",")):
        one = _PARAMETER.fullmatch(part)
        if one is None or one["name"] in found:
            raise UnknownGame(f"{game_id!r:.80}: parameters are written as in go(board_size=9)")
        found[one["name"]] = _value(one["value"])
    return match["id"].strip(), found


def _value(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _shown(parameters: Mapping[str, Any]) -> str:
    """The parameters as a part of the full id; the same ones always give the same text."""
    if not parameters:
        return ""
    words = (f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in parameters.items())
    return f"({','.join(sorted(words))})"


def openspiel_ids() -> list[str]:
    """Names of OpenSpiel's games; none if it is not installed."""
    return [] if importlib.util.find_spec("pyspiel") is None else _adapter("openspiel").names()


def infos() -> list[GameInfo]:
    """What is installed here: built in, by entry points, and CartPole where Gymnasium is. `others` names the rest. An
    entry point that fails is left out with a warning."""
    found: list[GameInfo] = []
    for game_id in _own_ids():
        try:
            found.append(info(game_id))
        except Exception as error:
            if game_id in BUILT_IN:
                raise
            warnings.warn(f"the game {game_id} of an entry point does not load: {error!r}", RuntimeWarning, 2)
    if importlib.util.find_spec("gymnasium") is not None:
        found.append(info("CartPole-v1"))
    return found


def others() -> dict[str, list[str]]:
    """Ids of the environments of other libraries that are installed here, by library. Some of them may still refuse to
    be played: `harena validate --env ID` says why."""
    found: dict[str, list[str]] = {}
    if importlib.util.find_spec("gymnasium") is not None:
        found["gymnasium"] = _adapter("gymnasium").ids()
    if importlib.util.find_spec("pettingzoo") is not None:
        found["pettingzoo"] = [f"pettingzoo/{name}" for name in _adapter("pettingzoo").names()]
    found["openspiel"] = [f"openspiel/{name}" for name in openspiel_ids()]
    return {library: ids for library, ids in found.items() if ids}


def info(game_id: str) -> GameInfo:
    game = make(game_id)
    return GameInfo(
        id=resolve(game_id),
        seats=game.seats,
        simultaneous=game.simultaneous,
        hidden=game.hidden,
        summary=_summary(game),
        observation=game.observation_space(0).describe(),
        action=game.action_space(0).describe(),
    )


def trust(game_id: str) -> None:
    """Let `make` import this "module:factory", here and in processes started from now on. Other ids are ignored. Use it
    only for an id that the operator of this process typed."""
    if ":" not in game_id:
        return
    game_id, _ = split_parameters(game_id)
    if not _FACTORY.fullmatch(game_id):
        raise UnknownGame(f"{game_id!r:.80} is not of the form module:factory")
    if game_id not in variables.names(variables.GAMES):
        variables.add_name(variables.GAMES, game_id)


def unknown(game_id: str, known: list[str], hint: str = "") -> UnknownGame:
    by_name = {name.lower(): name for name in known}
    by_name |= {name.lower().rpartition("-v")[0]: name for name in known if "-v" in name}
    near = difflib.get_close_matches(game_id.lower(), by_name, n=3, cutoff=0.5)
    names = list(dict.fromkeys(by_name[name] for name in near))
    suggestion = f"did you mean {' or '.join(names)}?" if names else "`harena envs` lists the games"
    return UnknownGame(f"no game {game_id!r:.80}: {suggestion}{hint}")


def checked_config(game_id: str, config: Mapping[str, Any], allowed: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse keys that are not in `allowed`, by name."""
    for key in config:
        if key not in allowed:
            names = ", ".join(sorted(allowed)) or "none"
            raise SpecError(f"{game_id} has no config {key!r:.40}; allowed: {names}")
    return dict(config)


def _plain(game_id: str, config: Mapping[str, Any] | None) -> dict[str, Any]:
    if config is None:
        return {}
    if not isinstance(config, Mapping) or not all(isinstance(key, str) for key in config):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(f"the config of {game_id} is not a mapping with names as keys")
    return dict(config)


def _build(game_id: str, factory: _Factory, config: dict[str, Any]) -> Game:
    if config:
        parameters = inspect.signature(factory).parameters
        named = {name: p for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        config = checked_config(game_id, config, named)
    try:
        game = adapted(game_id, factory(**config))
        if game.id != game_id:
            game.id = game_id  # results and replays carry it, and must find the game again
        if config:
            _try_out(game)
    except HarenaError:
        raise
    except Exception as error:
        if config:
            given = ", ".join(f"{key}={value!r:.40}" for key, value in config.items())
            raise SpecError(f"{game_id} cannot be played with {given}: {error!r}") from error
        raise GameError(f"{game_id} could not be made: {error!r}") from error
    return game


def adapted(game_id: str, made: Any) -> Game:
    """Wrap an object of Gymnasium, PettingZoo or OpenSpiel as a game. Anything else is returned as it is."""
    if hasattr(made, "to_move"):
        return made
    # Only a library that is loaded can have made it.
    for package, prefix in (("gymnasium", "gymnasium"), ("pettingzoo", "pettingzoo"), ("pyspiel", "openspiel")):
        if package in sys.modules:
            game = _adapter(prefix).wrap(game_id, made)
            if game is not None:
                return game
    raise TypeError(
        f"a factory returns a game, or an object of Gymnasium, PettingZoo or OpenSpiel, not {type(made)!r:.80}"
    )


def _try_out(game: Game) -> None:
    """Start the game once, because a constructor may accept a value that fails later."""
    if type(game.seats) is not int or type(game.max_steps) is not int:
        raise TypeError("seats and max_steps are whole numbers")
    game.reset(0)
    for seat in range(game.seats):
        game.action_space(seat)
        game.observation_space(seat).encode(game.observe(seat))
    game.to_move()


def _summary(game: Game) -> str:
    doc = getattr(game, "summary", None) or inspect.getdoc(type(game)) or ""
    return doc.strip().split("\n")[0]


def _normal(game_id: str) -> str:
    versioned = _VERSIONED.fullmatch(game_id.strip().lower())
    name, version = (versioned["name"], versioned["version"]) if versioned else (game_id.strip().lower(), "")
    name = re.sub(r"[\s-]+", "_", name)
    name = ALIASES.get(name, name)
    return f"{name}-v{int(version)}" if version else name


def _newest(name: str, known: list[str]) -> str | None:
    """The id itself if it has a version, otherwise the highest version of that name."""
    if name in known:
        return name
    versions = [match for match in map(_VERSIONED.fullmatch, known) if match and match["name"] == name]
    return max(versions, key=lambda match: int(match["version"]))[0] if versions else None


def _own_ids() -> list[str]:
    return sorted({*BUILT_IN, *_entry_points()})


@functools.cache
def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    """Return entry points by id. An id has a version, and built-in games cannot be replaced."""
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {
        point.name: point
        for point in points
        if _VERSIONED.fullmatch(point.name) and _normal(point.name) == point.name and point.name not in BUILT_IN
    }


def _of_entry_point(point: importlib.metadata.EntryPoint) -> _Factory:
    try:
        return cast(_Factory, point.load())
    except Exception as error:
        raise GameError(f"{point.name} is installed as {point.value}, which does not load: {error!r}") from error


def _check_trusted(game_id: str) -> None:
    if not _FACTORY.fullmatch(game_id) or game_id not in variables.names(variables.GAMES):
        raise UnknownGame(
            f"{game_id!r:.80} names code to import, which only the operator may: "
            f"list it in the variable {variables.GAMES}"
        )


def _trusted_factory(game_id: str) -> _Factory:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that it hides nothing: an installed script does not have it
    try:
        return cast(_Factory, _load(game_id))
    except (ImportError, AttributeError) as error:
        raise UnknownGame(f"{game_id} could not be imported: {error}") from error


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _adapter(prefix: str) -> ModuleType:
    return importlib.import_module(ADAPTERS[prefix])
