"""Specs, limits and clocks: what cannot be meant is refused when it is written, with its name and its range."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harena import Clocks, Limits, Mount, Result, Sandbox, SandboxPool, Spec, SpecError, Usage, Verdict
from harena.sandbox import spec


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Limits)])
@pytest.mark.parametrize("value", [-1, 10**12, math.nan, math.inf, "5", True])
def test_limit_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=f"{name}="):
        Limits(**{name: value})


def values(name: str, value: Any) -> dict[str, Any]:
    return {name: value}


@pytest.mark.parametrize("name", ["memory_mb", "processes", "output_bytes", "open_files"])
def test_limits_that_count_are_whole_numbers(name: str) -> None:
    with pytest.raises(SpecError, match=f"{name}="):
        Limits(**values(name, 32.5))


@pytest.mark.parametrize("name", ["wall_s", "memory_mb", "processes", "open_files"])
def test_limit_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=f"{name}="):
        Limits(**{name: 0})
    with pytest.raises(SpecError, match=f"{name}="):
        Limits(**values(name, None))


def test_limits_may_be_tight() -> None:
    limits = Limits(wall_s=0.001, cpu_s=0.001, memory_mb=16, processes=1, output_bytes=0, open_files=16)
    assert limits.output_bytes == 0


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Clocks)])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "5"])
def test_clock_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=f"{name}="):
        Clocks(**{name: value})


@pytest.mark.parametrize("target", ["relative", "", "/a/../b", "/..", "..", "/a\0b"])
def test_mount_target_must_be_absolute_and_plain(target: str) -> None:
    with pytest.raises(SpecError, match="mount"):
        Mount(source="/usr", target=target)


def test_mounts_are_read_only_unless_said() -> None:
    assert not Mount(source="/usr", target="/data").writable


@pytest.mark.parametrize("env", [{"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "x\0"}])
def test_environment_must_be_usable(env: dict[str, str]) -> None:
    with pytest.raises(SpecError, match="env"):
        Spec(env=env)


@pytest.mark.parametrize("name", ["", "a-b", "a b", ".a", "a..b", "+/path", "os; print(1)"])
def test_preload_takes_module_names_alone(name: str) -> None:
    with pytest.raises(SpecError, match="preload"):
        Spec(preload=(name,))


def test_preload_takes_submodules() -> None:
    assert Spec(preload=("os.path", "json")).preload == ("os.path", "json")


@pytest.mark.parametrize("hostname", ["", "x" * 64, "büx", "a\0b", "a b\n"])
def test_hostname_must_be_one(hostname: str) -> None:
    with pytest.raises(SpecError, match="hostname"):
        Spec(hostname=hostname)


@pytest.mark.parametrize("size_mb", [0, -1, 10**9, 1.5])
def test_workspace_must_have_a_size(size_mb: Any) -> None:
    with pytest.raises(SpecError, match="workspace_mb"):
        Spec(workspace_mb=size_mb)


@pytest.mark.parametrize("field", ["packages", "preload", "mounts"])
def test_a_word_where_several_are_expected_is_refused(field: str) -> None:
    with pytest.raises((SpecError, TypeError)):
        Spec(**values(field, "numpy"))


@pytest.mark.parametrize(
    "value",
    [Limits(), Clocks(), Spec(), Mount(source="/usr", target="/u"), Usage(cpu_s=0, wall_s=0, peak_mb=0, bytes=0)],
)
def test_data_that_crosses_a_layer_cannot_be_changed(value: Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, dataclasses.fields(value)[0].name, 1)


def test_result_is_json_for_those_who_print_it() -> None:
    usage = Usage(cpu_s=0.1, wall_s=0.2, peak_mb=3, bytes=4)
    result = Result(
        verdict=Verdict.OK, exit_code=0, signal=None, stdout=b"\xff\n", stderr=b"", usage=usage, value={"a": 1}
    )
    data = json.loads(json.dumps(result.as_json()))
    assert (data["verdict"], data["stdout"], data["usage"]["cpu_s"], data["value"]) == ("ok", "\ufffd\n", 0.1, {"a": 1})


def test_verdicts_are_these() -> None:
    names = {"ok", "exit", "signal", "time", "memory", "output", "processes", "policy"}
    assert {verdict.value for verdict in Verdict} == names


@given(st.text(min_size=1, max_size=50).filter(lambda path: "\0" not in path))
def test_paths_start_in_the_workspace_unless_absolute(path: str) -> None:
    assert spec.workspace_path(path) == (path if path.startswith("/") else f"/workspace/{path}")


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 4001, "ü" * 2001])
def test_paths_that_no_kernel_takes_are_refused(path: str) -> None:
    with pytest.raises(SpecError, match="path"):
        spec.workspace_path(path)


@pytest.mark.parametrize("make", [Sandbox, SandboxPool])
@pytest.mark.parametrize("name", ["spec", "limits", "clocks"])
@pytest.mark.parametrize("value", [0, 1, "", "python:3.12", {}, Usage])
def test_an_argument_of_another_kind_is_refused_by_name(make: Any, name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=f"^{name}: expected a {name.title()}, not "):
        make(**{name: value})


def test_the_name_of_an_image_in_place_of_a_spec_is_answered_with_the_right_argument() -> None:
    with pytest.raises(SpecError, match="give image=NAME"):
        Sandbox("python:3.12")
