"""Texts made from the parser of the command: shell completion, the man page and the reference of the documentation.
Each reads the parser that runs the commands, so that none of them can name an option that does not exist.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass

from harena import cli

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    words: tuple[str, ...]
    parser: argparse.ArgumentParser
    help: str
    children: dict[str, str]
    """Subcommands with their help."""

    @property
    def options(self) -> list[argparse.Action]:
        return [action for action in _actions(self.parser) if action.option_strings and _is_shown(action)]

    @property
    def arguments(self) -> list[argparse.Action]:
        found = [action for action in _actions(self.parser) if not action.option_strings and _is_shown(action)]
        return [action for action in found if not isinstance(action, argparse._SubParsersAction)]  # pyright: ignore


def commands() -> list[Command]:
    """Every command and subcommand, `harena` itself first."""
    return list(_walk(cli.full_parser(), (), ""))


def _walk(parser: argparse.ArgumentParser, words: tuple[str, ...], text: str) -> Iterator[Command]:
    children: dict[str, argparse.ArgumentParser] = {}
    texts: dict[str, str] = {}
    for action in _actions(parser):
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            children = dict(action.choices)  # pyright: ignore
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}  # pyright: ignore
    yield Command(words=words, parser=parser, help=text, children={name: texts.get(name, "") for name in children})
    for name, child in children.items():
        yield from _walk(child, (*words, name), texts.get(name, ""))


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return parser._actions  # pyright: ignore[reportPrivateUsage]


def _is_shown(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS


def _text(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    return " ".join(parser._get_formatter()._expand_help(action).split()) if action.help else ""  # pyright: ignore


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.metavar is not None:
        return action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    return "|".join(map(str, action.choices)) if action.choices is not None else action.dest.upper()


# ---- completion ----


def completion(shell: str) -> str:
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](commands())


def _words(command: Command) -> list[str]:
    """What may follow a command: its subcommands, the choices of its arguments, its options."""
    choices = [str(one) for action in command.arguments for one in action.choices or ()]
    return [*command.children, *choices, *(name for action in command.options for name in action.option_strings)]


def _bash(found: list[Command]) -> str:
    cases = "\n".join(f"    '{' '.join(one.words)}') words='{' '.join(_words(one))}' ;;" for one in found)
    known = " ".join(f"'{' '.join(one.words)}'" for one in found if one.words)
    return f"""\
# Completion of harena for bash: source <(harena completion bash)
_harena() {{
  local word path='' words='' known=({known})
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    local longer="${{path:+$path }}$word" one
    for one in "${{known[@]}}"; do [[ $one == "$longer" ]] && path=$longer && break; done
  done
  case $path in
{cases}
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}")
}}
complete -o default -F _harena harena
"""


def _zsh(found: list[Command]) -> str:
    return f"""\
#compdef harena
# Completion of harena for zsh: source <(harena completion zsh)
autoload -Uz compinit bashcompinit && compinit -C && bashcompinit
{_bash(found)}"""


def _fish(found: list[Command]) -> str:
    lines = ["# Completion of harena for fish: harena completion fish | source"]
    top = " ".join(found[0].children)
    for command in found:
        if not command.words:
            when = "__fish_use_subcommand"
        else:
            when = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.words)
        for name, text in command.children.items():
            seen = (
                f"{when}; and not __fish_seen_subcommand_from {' '.join(command.children)}" if command.words else when
            )
            lines.append(f"complete -c harena -f -n '{seen}' -a '{name}' -d '{_quoted(text)}'")
        for action in command.options:
            names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in action.option_strings)
            takes = "" if action.nargs == 0 else " -r"
            lines.append(f"complete -c harena -n '{when}' {names}{takes} -d '{_quoted(_text(action, command.parser))}'")
    return "\n".join([*lines, f"# {len(found)} commands; top level: {top}", ""])


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


# ---- the man page ----


def man() -> str:
    from harena import __version__

    found = commands()
    lines = [f'.TH HARENA 1 "" "Harena {__version__}" "User Commands"', ".SH NAME"]
    lines += [f"harena \\- {_roff(found[0].parser.description or '')}", ".SH SYNOPSIS", ".B harena", "COMMAND ..."]
    lines += [".SH COMMANDS"]
    for command in found[1:]:
        lines += [f'.SS "harena {" ".join(command.words)}"', _roff(_described(command))]
        for action in [*command.arguments, *command.options]:
            head = " ".join(filter(None, [", ".join(action.option_strings), _value(action)]))
            lines += [".TP", f"\\fB{_roff(head)}\\fR", _roff(_text(action, command.parser)) or "\\&"]
    lines += [".SH EXIT STATUS", ".nf", *(_roff(line) or "\\&" for line in cli.EXIT_CODES.splitlines()[1:]), ".fi"]
    lines += [".SH EXAMPLES", ".nf", *(_roff(line) or "\\&" for line in cli.EXAMPLES.splitlines()[1:]), ".fi"]
    return "\n".join(lines) + "\n"


def _described(command: Command) -> str:
    text = command.parser.description or command.help
    return re.sub(r"\s+", " ", text).strip()


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    escaped = "".join(letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in escaped)
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


# ---- the documentation ----


def markdown() -> str:
    """The page docs/reference/cli.md."""
    lines = ["# Command line", "", "Made from the parser of the command by `make docs`.", ""]
    for command in commands()[1:]:
        lines += [
            f"{'#' * (1 + len(command.words))} harena {' '.join(command.words)}",
            "",
            _escaped(_described(command)),
            "",
        ]
        if command.children:
            continue
        rows = [*command.arguments, *(one for one in command.options if "--help" not in one.option_strings)]
        if rows:
            lines += ["| argument | meaning |", "|---|---|"]
            for action in rows:
                head = " ".join(filter(None, [", ".join(action.option_strings), _value(action)]))
                lines.append(f"| `{head.replace('|', chr(92) + '|')}` | {_escaped(_text(action, command.parser))} |")
            lines.append("")
    lines += ["## Exit codes", "", "```text", *cli.EXIT_CODES.splitlines()[1:], "```", ""]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return re.sub(r"([\\<>|*_\[\]])", r"\\\1", text)
