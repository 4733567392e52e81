"""References, digests, platforms, manifests, configs and settings are read as others read them, and nonsense is refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harena.errors import SpecError
from harena.images import BadImage, BadReference, ImageError
from harena.images.manifest import Index, Manifest, parse_config, parse_manifest
from harena.images.reference import Digest, Platform, Reference, checked_host
from harena.images.settings import VARIABLES, ImageSettings, table

HEX = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.12-slim", "docker.io/library/python:3.12-slim"),
        ("team/app", "docker.io/team/app:latest"),
        ("docker.io/python:3", "docker.io/library/python:3"),
        ("index.docker.io/python", "docker.io/library/python:latest"),
        ("registry-1.docker.io/a/b:c", "docker.io/a/b:c"),
        ("registry.example/owner/name/deep:v1", "registry.example/owner/name/deep:v1"),
        ("localhost/app", "localhost/app:latest"),
        ("localhost:5000/app", "localhost:5000/app:latest"),
        ("LOCALHOST:5000/app", "localhost:5000/app:latest"),
        ("127.0.0.1:5000/a/b:1", "127.0.0.1:5000/a/b:1"),
        ("[::1]:5000/app:1", "[::1]:5000/app:1"),
        (f"python@sha256:{HEX}", f"docker.io/library/python@sha256:{HEX}"),
        (f"python:3@sha256:{HEX}", f"docker.io/library/python:3@sha256:{HEX}"),
        ("a__b/c-d.e--f", "docker.io/a__b/c-d.e--f:latest"),
    ],
)
def test_a_reference_is_completed_as_docker_does(text: str, canonical: str) -> None:
    assert str(Reference.parse(text)) == canonical
    assert str(Reference.parse(canonical)) == canonical


def test_the_familiar_name_is_short() -> None:
    assert Reference.parse("docker.io/library/python:3").familiar == "python:3"
    assert Reference.parse("docker.io/team/app:3").familiar == "team/app:3"
    assert Reference.parse("registry.example/a/b:3").familiar == "registry.example/a/b:3"


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "-x", "--help", "UPPER", "a//b", "/a", "a/", "a/../b", "../a", "a:", "a:-x", "a:b/c:d", "a b", "a\nb", "a\0",
        "https://docker.io/python", "host:0/a", "host:99999/a", "host:x/a", "ho_st.x:1/a", "[::g]:1/a", "user@host/a",
        "a@sha256:abc", "a@md5:" + "0" * 32, f"a@sha256:{HEX.upper()}", "a@", "é", "a" * 600, ".a", "a.", "a..b", "a/" * 200 + "b",
    ],
)  # fmt: skip
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(BadReference):
        Reference.parse(text)


@given(st.text(max_size=80))
def test_whatever_is_accepted_is_stable_and_plain(text: str) -> None:
    try:
        found = Reference.parse(text)
    except BadReference:
        return
    assert Reference.parse(str(found)) == found
    assert str(found).isascii()
    assert ".." not in found.repository.split("/")


def test_platforms() -> None:
    assert str(Platform.parse("linux/arm/v7")) == "linux/arm/v7"
    assert Platform.of_host().os == "linux"
    for text in ("linux", "linux/", "a/b/c/d", "linux/AMD64", "/amd64"):
        with pytest.raises(BadReference):
            Platform.parse(text)
    assert checked_host("registry.example:443") == "registry.example:443"


def manifest(**more: object) -> bytes:
    blob = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": f"sha256:{HEX}", "size": 2}
    layer = {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": f"sha256:{HEX}", "size": 2}
    return json.dumps({"schemaVersion": 2, "config": blob, "layers": [layer], **more}).encode()


def layer_with(**more: object) -> list[object]:
    return [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": f"sha256:{HEX}", "size": 2, **more}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"schemaVersion": NaN}', "not valid JSON"),
        (b"{}", "no schemaVersion"),
        (b'{"schemaVersion": 1, "name": "x"}', "schema 1, which is obsolete"),
        (b'{"schemaVersion": 3}', "unknown schemaVersion"),
        (b'{"schemaVersion": 2}', "not that of an image"),
        (manifest(mediaType="text/html", manifests=[]), "not that of an image"),
        (manifest(config=None), "not a JSON object"),
        (manifest(config={"mediaType": "application/x-helm", "digest": f"sha256:{HEX}", "size": 1}), "not an image"),
        (manifest(layers={}), "not a list"),
        (manifest(layers=layer_with() * 501), "more than 500"),
        (manifest(layers=layer_with(size=-1)), "no valid size"),
        (manifest(layers=layer_with(size=True)), "no valid size"),
        (manifest(layers=layer_with(size="2")), "no valid size"),
        (manifest(layers=layer_with(size=1 << 60)), "more than .* are not accepted"),
        (manifest(layers=layer_with(digest="sha256:../../etc")), "invalid digest"),
        (manifest(layers=layer_with(digest=7)), "not a text"),
        (
            manifest(layers=layer_with(mediaType="application/vnd.docker.image.rootfs.foreign.diff.tar.gzip")),
            "outside the registry",
        ),
        (b"{" + b" " * (5 << 20) + b"}", "more than 4194304 are not accepted"),
    ],
)
def test_a_bad_manifest_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(BadImage, match=message):
        parse_manifest(data)


def test_a_manifest_need_not_name_its_type() -> None:
    assert isinstance(parse_manifest(manifest()), Manifest)
    assert isinstance(parse_manifest(b'{"schemaVersion": 2, "manifests": []}'), Index)


def config(**more: object) -> bytes:
    return json.dumps({"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": []}, "config": more}).encode()


def test_a_config_may_have_nulls_and_old_forms() -> None:
    found = parse_config(config(Env=None, Cmd=None, Entrypoint="/bin/x", Labels=None, WorkingDir="", Healthcheck=None))
    assert (found.env, found.cmd, found.entrypoint, found.cwd) == ((), (), ("/bin/x",), "/")
    assert parse_config(config(WorkingDir="app")).cwd == "/app"
    assert parse_config(config(WorkingDir="//../../x")).cwd == "/x"


@pytest.mark.parametrize(
    "more",
    [
        {"Env": ["=x"]}, {"Env": ["A=\0"]}, {"Env": [1]}, {"Env": {}}, {"Env": ["A=" + "x" * (1 << 18)]}, {"Env": ["A=1"] * 5000},
        {"WorkingDir": 1}, {"User": "x" * 300}, {"Cmd": [None]}, {"Labels": {"a": 1}}, {"Labels": ["a"]}, {"ExposedPorts": ["80"]},
        {"Healthcheck": {"Interval": -1}}, {"Healthcheck": {"Retries": "x"}}, {"Env": ["A=\ud800"]},
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_config_is_refused(more: dict[str, object]) -> None:
    with pytest.raises(BadImage):
        parse_config(config(**more))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["schemaVersion", "mediaType", "config", "layers", "manifests", "digest", "size", "rootfs", "diff_ids", "Env", "platform", "annotations", "Healthcheck"]), inner, max_size=5), max_leaves=20))  # fmt: skip
def test_any_json_is_parsed_or_refused(fields: object) -> None:
    data = json.dumps(fields).encode()
    for parse in (parse_manifest, parse_config):
        with contextlib.suppress(ImageError):
            parse(data)


def test_digests_are_checked() -> None:
    assert Digest.parse(f"sha256:{HEX}").matches(b"test")
    assert not Digest.parse(f"sha256:{HEX}").matches(b"Test")
    assert Digest.of(b"test").hex == HEX


def test_settings_come_from_the_environment() -> None:
    found = ImageSettings.from_environment(
        {
            "HARENA_IMAGES": "/data/images",
            "HARENA_IMAGES_MIRRORS": "docker.io=mirror.example:5000, docker.io=other.example,registry.example=mirror.example",
            "HARENA_IMAGES_INSECURE": "10.0.0.1:5000",
            "HARENA_IMAGES_MAX_GB": "1.5",
            "DOCKER_CONFIG": "/x",
        }
    )
    assert found.folder == Path("/data/images")
    assert found.mirrors == {
        "docker.io": ("mirror.example:5000", "other.example"),
        "registry.example": ("mirror.example",),
    }
    assert found.insecure == {"10.0.0.1:5000"}
    assert found.max_bytes == 1_500_000_000
    assert found.docker_config == Path("/x/config.json")
    assert ImageSettings.from_environment({"XDG_DATA_HOME": "/d"}).folder == Path("/d/harena/images")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HARENA_IMAGES_MIRRORS", "mirror.example"),
        ("HARENA_IMAGES_MIRRORS", "docker.io=http://mirror"),
        ("HARENA_IMAGES_INSECURE", "a/b"),
        ("HARENA_IMAGES_MAX_GB", "lots"),
        ("HARENA_IMAGES_MAX_GB", "-1"),
    ],
)
def test_a_bad_setting_is_named(name: str, value: str) -> None:
    with pytest.raises(SpecError, match=name):
        ImageSettings.from_environment({name: value})


def test_the_docs_have_every_variable() -> None:
    docs = Path(__file__).parents[2] / "docs" / "images.md"
    assert table() in docs.read_text()
    assert all(name in table() for name in VARIABLES)


def test_a_proxy_is_used_for_other_machines_unless_excepted() -> None:
    from harena.images.errors import RegistryError
    from harena.images.registry.transport import Proxy, Url

    proxy = Proxy("http://proxy.example:3128", "internal.example, .corp.example,exact.example:5000")

    def is_used(text: str) -> bool:
        return proxy.for_url(Url.parse(text)) is not None

    assert is_used("https://registry.example/v2/")
    assert not is_used("https://a.internal.example/v2/")
    assert not is_used("https://a.corp.example/v2/")
    assert is_used("https://notcorp.example/v2/")
    assert is_used("https://exact.example/v2/")
    assert not is_used("https://exact.example:5000/v2/")
    assert not is_used("http://localhost:5000/v2/")
    assert Proxy("http://p", "*").for_url(Url.parse("https://registry.example/")) is None
    with pytest.raises(RegistryError, match="HTTPS_PROXY is not a URL"):
        Proxy("socks5://x").for_url(Url.parse("https://registry.example/"))
