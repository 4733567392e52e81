"""Dockerfiles: what they mean, and that whatever they hold is read or refused with a line."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harena.images.builder import dockerfile as docker
from harena.images.builder.dockerfile import DockerfileError, expand, parse
from harena.images.builder.ignore import Ignore

# ---- instructions ----


def only(text: str) -> docker.Instruction:
    stage = parse(f"FROM base\n{text}\n").stages[0]
    assert len(stage.instructions) == 1
    return stage.instructions[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("RUN echo a  b", docker.RunStep(2, "echo a  b")),
        ("run\techo a", docker.RunStep(2, "echo a")),
        ("  RUN\techo a", docker.RunStep(2, "echo a")),
        ('RUN ["a", "b c"]', docker.RunStep(2, ("a", "b c"))),
        ("RUN [ -f x ]", docker.RunStep(2, "[ -f x ]")),
        ("RUN ['a']", docker.RunStep(2, "['a']")),
        (r'RUN ["\ud800"]', docker.RunStep(2, r'["\ud800"]')),
        ("RUN echo $((1 << x))", docker.RunStep(2, "echo $((1 << x))")),
        ("RUN a \\\n# comment\n\n  b", docker.RunStep(2, "a   b")),
        ("RUN a\x85b \x0c c", docker.RunStep(2, "a\x85b \x0c c")),
        ("RUN a \\\\\nRUN b", None),
        ("COPY a b /c/", docker.Copy(2, ("a", "b"), "/c/")),
        ('COPY ["a b", "c"]', docker.Copy(2, ("a b",), "c")),
        (
            "COPY --from=one --chown=1:2 --chmod=755 a b",
            docker.Copy(2, ("a",), "b", "one", "1:2", 0o755),
        ),
        ("ADD a b", docker.Copy(2, ("a",), "b", is_add=True)),
        ("ENV a=1 b='2 3'", docker.Env(2, (("a", "1"), ("b", "'2 3'")))),
        ("ENV a b c", docker.Env(2, (("a", "b c"),))),
        ("ARG a=$b", docker.Arg(2, "a", "$b")),
        ("ARG a", docker.Arg(2, "a", None)),
        ('LABEL "a.b"=c', docker.Label(2, (("a.b", "c"),))),
        ("MAINTAINER me", docker.Label(2, (("maintainer", "me"),))),
        ("WORKDIR /a b", docker.Setting(2, "WORKDIR", "/a b")),
        ("USER app:app", docker.Setting(2, "USER", "app:app")),
        ('SHELL ["/bin/bash", "-c"]', docker.Words(2, "SHELL", ("/bin/bash", "-c"))),
        ("EXPOSE 80 53/udp", docker.Words(2, "EXPOSE", ("80", "53/udp"))),
        ("CMD", docker.Start(2, "CMD", "")),
        ("ENTRYPOINT run it", docker.Start(2, "ENTRYPOINT", "run it")),
        ("HEALTHCHECK NONE", docker.HealthCheck(2, None)),
        (
            "HEALTHCHECK --interval=1m30s --retries=3 CMD true",
            docker.HealthCheck(2, "true", (("interval", "1m30s"), ("retries", "3"))),
        ),
    ],
)
def test_instructions(text: str, expected: docker.Instruction | None) -> None:
    if expected is None:
        assert len(parse(f"FROM base\n{text}\n").stages[0].instructions) == 2
    else:
        assert only(text) == expected


def test_stages_arguments_and_the_escape_directive() -> None:
    found = parse("# escape=`\n# a comment\nARG V=1\nFROM --platform=linux/amd64 a:$V AS One\nRUN a `\n b\nFROM one\n")
    assert found.escape == "`"
    assert found.args == (docker.Arg(3, "V", "1"),)
    assert [stage.start for stage in found.stages] == [
        docker.From(4, "a:$V", "one", "linux/amd64"),
        docker.From(7, "one"),
    ]
    assert found.stages[0].instructions == (docker.RunStep(5, "a  b"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no FROM"),
        ("RUN a", "line 1: RUN before the first FROM"),
        ("FROM a b", "line 1: FROM"),
        ("FROM a AS 1x", "line 1: FROM"),
        ("FROM a\nONBUILD RUN a", "line 2: ONBUILD is not supported"),
        ("FROM a\nRUN --mount=type=cache,target=/x a", "line 2: RUN --mount is not supported"),
        ("FROM a\nCOPY --link a b", "line 2: COPY --link is not supported"),
        ("FROM a\nCOPY --chmod=u+x a b", "line 2: COPY --chmod=u"),
        ("FROM a\nCOPY a", "line 2: COPY takes"),
        ("FROM a\nCOPY a b c", "end with /"),
        ("FROM a\nADD https://x/y z", "line 2: ADD of an address"),
        ("FROM a\nRUN <<EOF\nx\nEOF", "line 2: RUN with a here-document"),
        ("FROM a\nRUN cat <<-'EOF'\nx\nEOF", "line 2: RUN with a here-document"),
        ("FROM a\nJUMP", "line 2: JUMP"),
        ("FROM a\nRUN", "line 2: RUN needs an argument"),
        ("FROM a\nRUN []", "line 2: RUN of an empty list"),
        ("FROM a\nENV a", "line 2: ENV a has no value"),
        ("FROM a\nENV a=1 b", "line 2: ENV takes name=value"),
        ("FROM a\nENV a='1", "line 2: a quote"),
        ("FROM a\nSHELL /bin/sh", "line 2: SHELL takes a JSON list"),
        ("FROM a\nHEALTHCHECK --interval=soon CMD x", "line 2: HEALTHCHECK --interval=soon"),
        ("FROM a\nHEALTHCHECK x", "line 2: HEALTHCHECK takes"),
        ("FROM a\n" + "RUN a\n" * 2001, "more than 2000 instructions"),
        ("FROM a\0", "NUL"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(DockerfileError, match=re.escape(message)):
        parse(text)


# ---- variables ----

SCOPE = {"a": "1", "empty": "", "word": "x y"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$a-${a}", "1-1"),
        ("$missing|${missing}", "|"),
        ("${missing:-d} ${empty:-d} ${empty-d} ${missing-d}", "d d  d"),
        ("${a:+s} ${empty:+s} ${empty+s} ${missing+s}", "s  s "),
        ("${missing:-${a}}", "1"),
        ("'$a' \"$word\"", "$a x y"),
        (r"\$a \"q\" '\x'", r'$a "q" \x'),
        (r'"a\b\$a"', r"a\b$a"),
        ("$", "$"),
        ("$1", "$1"),
        ("\\", "\\"),
    ],
)
def test_variables(text: str, expected: str) -> None:
    assert expand(text, SCOPE) == expected


@pytest.mark.parametrize("text", ["${", "${}", "${a", "${a:?x}", "${a#x}", "${a:-" * 500 + "}" * 500])
def test_variables_that_are_refused(text: str) -> None:
    with pytest.raises(DockerfileError):
        expand(text, {})


def test_a_word_cannot_grow_without_end() -> None:
    with pytest.raises(DockerfileError, match="grows"):
        expand("$a" * 100, {"a": "x" * 100_000})


@pytest.mark.parametrize(
    ("text", "expected"), [("1m30s", 90 * 10**9), ("500ms", 5 * 10**8), ("0.5s", 5 * 10**8), ("0", 0), ("5", None)]
)
def test_durations(text: str, expected: int | None) -> None:
    assert docker.duration_ns(text) == expected


# ---- .dockerignore ----


@pytest.mark.parametrize(
    ("patterns", "out", "kept"),
    [
        ("*.log", ["a.log"], ["sub/a.log", "a.logs"]),
        ("**/*.log", ["a.log", "sub/deep/a.log"], ["a.txt"]),
        ("sub", ["sub", "sub/a"], ["subs"]),
        ("/sub/", ["sub/a"], ["x/sub/a"]),
        ("*\n!keep\n!sub/a", ["b", "sub/b"], ["keep", "sub/a"]),
        ("a?c\n# comment\n\n[xy]z", ["abc", "xz"], ["ac", "zz", "# comment"]),
        (r"\*", ["*"], ["a"]),
        ("a/**", ["a/b", "a/b/c"], ["b"]),
    ],
)
def test_ignored_paths(patterns: str, out: list[str], kept: list[str]) -> None:
    ignore = Ignore.parse(patterns)
    assert [path for path in out if not ignore.leaves_out(path)] == []
    assert [path for path in kept if ignore.leaves_out(path)] == []


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(DockerfileError):
        Ignore.parse("[z-a]")


# ---- anything ----

WORDS = st.sampled_from(
    [*["FROM", "RUN", "COPY", "ADD", "ENV", "ARG", "WORKDIR", "USER", "SHELL", "LABEL", "ENTRYPOINT", "CMD", "HEALTHCHECK", "EXPOSE", "VOLUME", "STOPSIGNAL", "ONBUILD", "MAINTAINER", "AS", "a:1", "scratch", "--from=x", "--chown=1", "--chmod=7", "--platform=$a", "NONE", "CMD"],
     "\n", "\\\n", "\\", " ", "\t", "#", "# escape=`\n", "`", "'", '"', "=", "a=b", "$a", "${a:-", "}", "[", "]", '["a"]',
     "<<EOF", "\ud800", "\x85", "\r\n", "*", "[z-a]", "!"]
)  # fmt: skip
TEXTS = st.one_of(st.text(), st.lists(WORDS).map(" ".join), st.lists(WORDS).map("".join))


@given(TEXTS)
def test_any_text_is_read_or_refused(text: str) -> None:
    for prefix in ("", "FROM a\n", "FROM a\nENV "):
        try:
            found = parse(prefix + text)
        except DockerfileError:
            continue
        assert found.stages
        lines = (prefix + text).count("\n") + 1
        for stage in found.stages:
            assert all(1 <= one.line <= lines for one in (stage.start, *stage.instructions))


@given(TEXTS)
def test_any_text_is_expanded_or_refused(text: str) -> None:
    with contextlib.suppress(DockerfileError):
        expand(text, SCOPE)


@given(TEXTS, st.text())
def test_any_text_is_a_list_of_patterns_or_refused(text: str, path: str) -> None:
    with contextlib.suppress(DockerfileError):
        Ignore.parse(text).leaves_out(path)
