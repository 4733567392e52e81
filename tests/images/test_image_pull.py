"""Pulling from registries, honest and other."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
import socket
import sys
import threading
import time
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest
import zstandard

from harena.images import BadImage, ImageNotFound, ImageStore, RegistryError
from harena.images.reference import Platform
from harena.images.registry.client import parameters
from harena.images.settings import ImageSettings
from support.registries import OCI_INDEX, OCI_MANIFEST, QUICK, Registry, digest_of, tar_of

BASE = tar_of({"etc": None, "etc/name": b"base\n", "etc/old": b"old\n"})
TOP = tar_of({"etc/name": b"top\n", "etc/.wh.old": b"", "data": bytes(range(256)) * 4000})


def with_settings(store: ImageStore, **more: object) -> ImageStore:
    return ImageStore(store.folder, settings=replace(store.settings, **more), patience=store.patience)


def is_clean(store: ImageStore) -> bool:
    """Whether nothing is left but finished work."""
    return not any((store.folder / "tmp").iterdir()) and not any((store.folder / "partial").iterdir())


def test_an_image_is_pulled_unpacked_and_found_again(registry: Registry, store: ImageStore) -> None:
    config = {
        "Env": ["PATH=/usr/bin", "EMPTY=", "A=b=c"],
        "WorkingDir": "/srv/../app",
        "User": "nobody",
        "Entrypoint": ["/init"],
        "Cmd": ["serve"],
        "Shell": ["/bin/bash", "-c"],
        "Labels": {"a": "b"},
        "ExposedPorts": {"80/tcp": {}},
        "Healthcheck": {"Test": ["CMD", "true"], "Interval": 2_000_000_000, "Retries": 3},
    }
    name = registry.tag("team/app:1", manifest := registry.add_image([BASE, TOP], config=config))
    image = store.pull(name)
    assert image.reference == name
    assert image.digest == manifest["digest"]
    assert image.config.env == (("PATH", "/usr/bin"), ("EMPTY", ""), ("A", "b=c"))
    assert (image.config.cwd, image.config.user) == ("/app", "nobody")
    assert (image.config.entrypoint, image.config.cmd, image.config.shell) == (
        ("/init",),
        ("serve",),
        ("/bin/bash", "-c"),
    )
    assert image.config.labels == (("a", "b"),)
    assert image.config.exposed_ports == ("80/tcp",)
    assert image.config.healthcheck is not None
    assert image.config.healthcheck.interval_s == 2.0
    with image.lease() as lease:
        low, high = (Path(layer) for layer in lease.layers)
        assert (low / "etc/name").read_bytes() == b"base\n"
        assert (high / "etc/name").read_bytes() == b"top\n"
    assert store.find(name) == image
    assert store.find(f"{registry.host}/team/app@{manifest['digest']}") == image
    assert store.find(f"{registry.host}/team/app:2") is None
    assert is_clean(store)


def test_a_second_pull_downloads_no_layer(registry: Registry, store: ImageStore) -> None:
    name = registry.tag("app", registry.add_image([BASE]))
    store.pull(name)
    before = len(registry.seen)
    store.pull(name)
    assert [path.split("/")[-2] for path, _ in registry.seen[before:]] == [
        "manifests",
        "blobs",
    ]  # the blob is the config


def test_a_digest_that_is_here_needs_no_network(registry: Registry, store: ImageStore) -> None:
    name = registry.tag("app", manifest := registry.add_image([BASE]))
    store.pull(name)
    before = len(registry.seen)
    assert store.pull(f"{registry.host}/app@{manifest['digest']}").digest == manifest["digest"]
    assert len(registry.seen) == before


def test_images_share_layers(registry: Registry, store: ImageStore) -> None:
    one = store.pull(registry.tag("one", registry.add_image([BASE])))
    two = store.pull(registry.tag("two", registry.add_image([BASE, TOP])))
    with one.lease() as first, two.lease() as second:
        assert first.layers[0] == second.layers[0]


def test_equal_layers_are_stacked_once(registry: Registry, store: ImageStore) -> None:
    """The kernel refuses a folder that comes twice."""
    image = store.pull(registry.tag("app", registry.add_image([BASE, TOP, BASE])))
    with image.lease() as lease:
        assert [(Path(layer) / "data").exists() for layer in lease.layers] == [True, False]


def test_an_image_without_layers_has_an_empty_one(registry: Registry, store: ImageStore) -> None:
    with store.pull(registry.tag("app", registry.add_image([]))).lease() as lease:
        assert [os.listdir(layer) for layer in lease.layers] == [[]]


@pytest.mark.parametrize(
    ("compress", "kind"),
    [
        (lambda data: data, "application/vnd.oci.image.layer.v1.tar"),
        (gzip.compress, "application/vnd.docker.image.rootfs.diff.tar.gzip"),
        (zstandard.compress, "application/vnd.oci.image.layer.v1.tar+zstd"),
        (
            lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:]),
            "application/vnd.oci.image.layer.v1.tar+gzip",
        ),
        (
            lambda data: zstandard.compress(data[:700]) + zstandard.compress(data[700:]),
            "application/vnd.oci.image.layer.v1.tar+zstd",
        ),
    ],
    ids=["plain", "gzip", "zstd", "two gzip members", "two zstd frames"],
)
def test_layers_are_decompressed(registry: Registry, store: ImageStore, compress: object, kind: str) -> None:
    image = store.pull(registry.tag("app", registry.add_image([TOP], compress=compress, kind=kind)))
    with image.lease() as lease:
        assert (Path(lease.layers[0]) / "data").read_bytes() == bytes(range(256)) * 4000


def test_zstd_without_a_decoder_names_the_package(
    registry: Registry, store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = "application/vnd.oci.image.layer.v1.tar+zstd"
    name = registry.tag("app", registry.add_image([TOP], compress=zstandard.compress, kind=kind))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    with pytest.raises(Exception, match=r"pip install 'harena\[images\]'"):
        store.pull(name)
    assert is_clean(store)


# ---- platforms ----


def index_of(registry: Registry, *platforms: str) -> dict[str, object]:
    members = []
    for text in platforms:
        platform = Platform.parse(text)
        image = registry.add_image([tar_of({text.replace("/", "-"): b""})], platform=platform)
        members.append(
            {
                **image,
                "platform": {"os": platform.os, "architecture": platform.architecture, "variant": platform.variant},
            }
        )
    return registry.add_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": members}, OCI_INDEX)


@pytest.mark.parametrize(
    ("wanted", "there", "chosen"),
    [
        ("linux/amd64", ["linux/arm64/v8", "linux/amd64"], "linux-amd64"),
        ("linux/arm64", ["linux/amd64", "linux/arm64/v8"], "linux-arm64-v8"),
        ("linux/arm/v7", ["linux/arm/v5", "linux/arm/v7"], "linux-arm-v7"),
        ("linux/arm/v7", ["linux/arm/v6", "linux/arm/v8"], "linux-arm-v6"),
        ("linux/amd64", ["linux/amd64/v3", "linux/amd64"], "linux-amd64"),
    ],
)
def test_an_index_is_resolved_by_platform(
    registry: Registry, store: ImageStore, wanted: str, there: list[str], chosen: str
) -> None:
    name = registry.tag("app", index := index_of(registry, *there))
    image = store.pull(name, platform=wanted)
    assert image.digest == index["digest"]
    with image.lease() as lease:
        assert os.listdir(lease.layers[0]) == [chosen]


def test_a_missing_platform_is_named(registry: Registry, store: ImageStore) -> None:
    name = registry.tag("app", index_of(registry, "linux/s390x", "windows/amd64"))
    with pytest.raises(
        ImageNotFound, match=r"not built for linux/arm64; platforms that it has: linux/s390x, windows/amd64"
    ):
        store.pull(name, platform="linux/arm64")
    single = registry.tag("one", registry.add_image([BASE], platform=Platform.parse("linux/s390x")))
    with pytest.raises(ImageNotFound, match=r"built for linux/s390x and not for linux/arm64"):
        store.pull(single, platform="linux/arm64")


# ---- access ----


def test_a_token_is_fetched_and_used(registry: Registry, store: ImageStore) -> None:
    registry.token = "sesame"
    store.pull(registry.tag("team/app", registry.add_image([BASE])))
    assert registry.token_query == {"service": ["test"], "scope": ["repository:team/app:pull"]}
    assert len(registry.paths("/token")) == 1


def docker_config(store: ImageStore, fields: object) -> ImageStore:
    path = store.folder.parent / "config.json"
    path.write_text(json.dumps(fields))
    return with_settings(store, docker_config=path)


def test_credentials_come_from_the_docker_config(registry: Registry, store: ImageStore) -> None:
    registry.token = "sesame"
    registry.password = "Basic " + base64.b64encode(b"me:se:cret").decode()
    name = registry.tag("app", registry.add_image([BASE]))
    with pytest.raises(RegistryError, match=r"gave no token for app \(status 401\).*docker login"):
        store.pull(name)
    auth = base64.b64encode(b"me:se:cret").decode()
    docker_config(store, {"auths": {registry.host: {"auth": auth}}}).pull(name)


def test_an_identity_token_is_exchanged(registry: Registry, store: ImageStore) -> None:
    registry.token, registry.password = "sesame", "refresh_token=mine"
    name = registry.tag("app", registry.add_image([BASE]))
    docker_config(store, {"auths": {registry.host: {"identitytoken": "mine"}}}).pull(name)


def helper(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "docker-credential-test"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize("how", ["credHelpers", "credsStore"])
def test_a_credential_helper_is_asked(
    registry: Registry, store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    registry.token = "sesame"
    registry.password = "Basic " + base64.b64encode(b"me:secret").decode()
    name = registry.tag("app", registry.add_image([BASE]))
    helper(
        tmp_path, f"""[ "$(cat)" = {registry.host} ] && echo '{{"Username": "me", "Secret": "secret"}}'""", monkeypatch
    )
    docker_config(store, {how: {registry.host: "test"} if how == "credHelpers" else "test"}).pull(name)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("sleep 60", "did not answer within"),
        ("echo nonsense", "invalid answer"),
        ("exit 7", "exit code 7"),
    ],
)
def test_a_bad_helper_is_an_error_that_names_it(
    registry: Registry, store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    from harena.images.registry import credentials

    helper(tmp_path, script, monkeypatch)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"credsStore": "test"}))
    with pytest.raises(RegistryError, match=f"docker-credential-test .*{message}"):
        credentials.find(path, "example.org", helper_s=0.5)
    path.write_text(json.dumps({"credsStore": "../../bin/sh"}))
    with pytest.raises(RegistryError, match="not a plain name"):
        credentials.find(path, "example.org")


def test_a_helper_without_credentials_means_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harena.images.registry import credentials

    helper(tmp_path, "echo credentials not found in native keychain; exit 1", monkeypatch)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"credsStore": "test"}))
    assert credentials.find(path, "example.org") is None
    assert credentials.find(tmp_path / "nothing.json", "example.org") is None


def test_a_token_does_not_follow_a_redirect_to_another_host(registry: Registry, store: ImageStore) -> None:
    registry.token = "sesame"
    with Registry() as storage:
        name = registry.tag("app", registry.add_image([BASE]))
        storage.data = registry.data
        registry.redirect = lambda path: f"http://{storage.host}/storage/{path.split('/')[-1]}"
        store.pull(name)
        assert len(storage.seen) == 2
        assert all("Authorization" not in headers for _, headers in storage.seen)


def test_a_challenge_from_another_host_is_not_answered(registry: Registry, store: ImageStore) -> None:
    with Registry() as storage:
        name = registry.tag("app", registry.add_image([BASE]))
        storage.data, storage.token = registry.data, "other"
        registry.redirect = lambda path: f"http://{storage.host}{path}"
        with pytest.raises(RegistryError, match="answered with status 401"):
            store.pull(name)
        assert not storage.paths("/token")
        assert not registry.paths("/token")


def test_redirects_are_counted(registry: Registry, store: ImageStore) -> None:
    name = registry.tag("app", registry.add_image([BASE]))
    registry.redirect = lambda path: path
    with pytest.raises(RegistryError, match="redirects more than 5 times"):
        store.pull(name)


@pytest.mark.parametrize(
    "target", ["http://169.254.169.254/latest", "http://[fe80::1]/x", "http://[::ffff:169.254.169.254]/x"]
)
def test_a_redirect_to_a_link_local_address_is_refused(registry: Registry, store: ImageStore, target: str) -> None:
    """Checked before any packet is sent."""
    name = registry.tag("app", registry.add_image([BASE]))
    registry.redirect = lambda path: target
    with pytest.raises(RegistryError, match=r"refused to go to .*link-local"):
        store.pull(name)


@pytest.mark.parametrize("target", ["127.0.0.1", "localhost", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]"])
def test_a_registry_elsewhere_may_not_send_us_to_loopback(
    registry: Registry, store: ImageStore, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """127.0.0.2 stands for a public address."""
    import harena.images.registry.transport as transport

    true = transport.zone_of
    monkeypatch.setattr(transport, "zone_of", lambda address: "other" if address == "127.0.0.2" else true(address))
    with Registry("127.0.0.2") as far:
        name = far.tag("app", far.add_image([BASE]))
        far.redirect = lambda path: f"http://{target}:{registry.port}{path}"
        with pytest.raises(RegistryError, match=r"refused to go to .*loopback"):
            with_settings(store, insecure=frozenset({far.host})).pull(name)
    assert registry.seen == []


def test_https_is_never_left_for_http() -> None:
    from harena.images.registry.client import Registry as Client

    client = Client("registry.example", ImageSettings(Path("/nowhere")), patience=QUICK)
    asked = []

    class Answer:
        status = 307

        def __init__(self, url):
            self.url = url

        def header(self, name):
            return "http://registry.example/elsewhere"

        def __enter__(self):
            return self

        def __exit__(self, *exc):
            pass

    client._exchange = lambda url, *more, **rest: asked.append(url) or Answer(url)  # type: ignore[method-assign]
    with pytest.raises(RegistryError, match="without TLS, which is refused"):
        client.manifest("library/x", "latest")
    assert [url.scheme for url in asked] == ["https"]


def test_plain_http_is_for_loopback_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from harena.images.registry.client import Registry as Client

    def base(host: str, **more: object) -> str:
        return str(Client(host, ImageSettings(Path("/nowhere"), **more))._base)

    assert base("docker.io") == "https://registry-1.docker.io/v2/"
    assert base("registry.example:5000") == "https://registry.example:5000/v2/"
    assert base("10.0.0.1:5000") == "https://10.0.0.1:5000/v2/"
    assert base("localhost:5000") == "http://localhost:5000/v2/"
    assert base("[::1]:5000") == "http://[::1]:5000/v2/"
    assert base("10.0.0.1:5000", insecure=frozenset({"10.0.0.1:5000"})) == "http://10.0.0.1:5000/v2/"
    # A name that claims to be loopback and is not gets nothing.
    client = Client("localhost:5000", ImageSettings(Path("/nowhere")), patience=replace(QUICK, attempts=1))
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *more, **rest: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 5000))]
    )
    with pytest.raises(RegistryError, match="refused to go to localhost:5000"):
        client.manifest("x", "latest")


def test_a_token_server_without_tls_gets_no_password() -> None:
    from harena.images.registry.client import Registry as Client

    client = Client("registry.example", ImageSettings(Path("/nowhere")), patience=QUICK)
    with pytest.raises(RegistryError, match="token server without TLS"):
        client._fetch_token({"realm": "http://registry.example/token"}, "x")


def test_a_challenge_is_read_as_written() -> None:
    text = (
        'realm="https://auth.example/token?a=b,c",service="s \\"q\\"", scope="repository:x:pull,push" , error=invalid'
    )
    assert parameters(text) == {
        "realm": "https://auth.example/token?a=b,c", "service": 's "q"', "scope": "repository:x:pull,push", "error": "invalid",
    }  # fmt: skip
    assert parameters('realm="unterminated') == {}


# ---- mirrors ----


def test_a_mirror_is_asked_first(registry: Registry, store: ImageStore) -> None:
    registry.tags["library/app", "1"] = registry.add_image([BASE])["digest"]
    far = with_settings(store, mirrors={"docker.io": (registry.host,)})
    image = far.pull("app:1")
    assert image.reference == "docker.io/library/app:1"


def test_what_a_mirror_lacks_or_spoils_comes_from_the_registry(registry: Registry, store: ImageStore) -> None:
    with Registry() as mirror:
        name = registry.tag("app", registry.add_image([BASE]))
        near = with_settings(store, mirrors={registry.host: (mirror.host,)})
        near.pull(name)
        assert mirror.paths("/manifests/")
        store.remove(name)
        mirror.data, mirror.types, mirror.tags = registry.data, registry.types, registry.tags
        mirror.spoil = lambda digest, data: data if data[:1] == b"{" else data[:-1] + b"?"
        near.pull(name)
    assert is_clean(store)


def test_a_mirror_that_is_down_costs_two_tries(registry: Registry, store: ImageStore) -> None:
    with Registry() as mirror:
        mirror.answers = [(503, {})] * 50
        name = registry.tag("app", registry.add_image([BASE, TOP]))
        with_settings(store, mirrors={registry.host: (mirror.host,)}).pull(name)
        assert len(mirror.seen) == 2


def test_a_download_that_a_mirror_began_is_continued_at_the_registry(registry: Registry, store: ImageStore) -> None:
    big = tar_of({"big": os.urandom(300_000)})
    with Registry() as mirror:
        name = registry.tag("app", manifest := registry.add_image([big]))
        mirror.data, mirror.types, mirror.tags = registry.data, registry.types, registry.tags
        mirror.cut_after = [100_000] * 9
        with_settings(store, mirrors={registry.host: (mirror.host,)}).pull(name)
    layer = json.loads(registry.data[manifest["digest"]])["layers"][0]
    assert registry.served[layer["digest"]] < layer["size"]


# ---- registries that fail ----


def test_a_busy_registry_is_asked_again(registry: Registry, store: ImageStore) -> None:
    name = registry.tag("app", registry.add_image([BASE]))
    registry.answers = [(503, {}), (429, {"Retry-After": "0"}), (500, {})]
    store = ImageStore(store.folder, settings=store.settings, patience=replace(QUICK, attempts=5))
    store.pull(name)


def test_retry_after_is_honoured(registry: Registry, store: ImageStore) -> None:
    name = registry.tag("app", registry.add_image([BASE]))
    registry.answers = [(429, {"Retry-After": "1"})]
    started = time.monotonic()
    store.pull(name)
    assert time.monotonic() - started >= 1


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_a_long_wait_is_an_error_with_advice(registry: Registry, store: ImageStore, form: str) -> None:
    name = registry.tag("app", registry.add_image([BASE]))
    wait = "3600" if form == "seconds" else formatdate(time.time() + 3600, usegmt=True)
    registry.answers = [(429, {"Retry-After": wait})]
    with pytest.raises(
        RegistryError, match=r"status 429.*asks to wait 3[56]\d\d s: try later, log in, or set a mirror"
    ):
        store.pull(name)


def test_retries_are_counted(registry: Registry, store: ImageStore) -> None:
    name = registry.tag("app", registry.add_image([BASE]))
    registry.answers = [(503, {})] * 50
    with pytest.raises(RegistryError, match=r"status 503.*gave up after 3 tries"):
        store.pull(name)
    assert len(registry.seen) == 3


def test_a_cut_download_is_resumed(registry: Registry, store: ImageStore) -> None:
    big = tar_of({"big": os.urandom(300_000)})
    name = registry.tag("app", manifest := registry.add_image([big]))
    layer = json.loads(registry.data[manifest["digest"]])["layers"][0]
    registry.cut_after = [100_000, 150_000]
    store.pull(name)
    ranges = [headers.get("Range") for path, headers in registry.seen if path.endswith(layer["digest"])]
    # A reset may cost bytes that were on their way.
    assert ranges[0] is None
    assert all(text is not None and text.startswith("bytes=") for text in ranges[1:])
    assert registry.served[layer["digest"]] < 2 * layer["size"]


def test_a_registry_without_ranges_starts_over(registry: Registry, store: ImageStore) -> None:
    big = tar_of({"big": os.urandom(300_000)})
    registry.cut_after, registry.ranges = [100_000], False
    store.pull(registry.tag("app", registry.add_image([big])))


def test_damaged_bytes_of_an_earlier_download_do_not_stay(registry: Registry, store: ImageStore) -> None:
    name = registry.tag("app", manifest := registry.add_image([TOP]))
    layer = json.loads(registry.data[manifest["digest"]])["layers"][0]
    partial = store.folder / "partial" / layer["digest"].replace(":", "-")
    for left in (b"?" * 100, b"?" * layer["size"], b"?" * (layer["size"] + 5)):
        partial.write_bytes(left)
        store.pull(name)
        store.remove(name)
        assert is_clean(store)


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ({"spoil": lambda digest, data: data if data[:1] == b"{" else b"?" + data[1:]}, "without its digest"),
        ({"spoil": lambda digest, data: data.replace(b"schemaVersion", b"schemaVersioN")}, "schemaVersion"),
        ({"spoil": lambda digest, data: data.replace(b"architecture", b"architecturE")}, "does not have its digest"),
        ({"length": lambda size: 1 << 60}, "announced 1152921504606846976 bytes of a layer"),
        ({"extra": b"more"}, "bytes of a layer of which"),
        ({"extra": b"more", "length": lambda size: size - 4}, ""),
        ({"extra": b"more", "length": lambda size: None}, "more bytes"),
        ({"extra": b"more", "lies_about_configs": True}, "announced a config"),
        ({"extra": b"more", "length": lambda size: None, "lies_about_configs": True}, "sent a config of more than"),
    ],
    ids=[
        "layer",
        "manifest",
        "config",
        "length",
        "longer",
        "longer than said",
        "longer without a length",
        "long config",
        "long config without a length",
    ],
)
def test_lies_are_refused_and_nothing_is_kept(
    registry: Registry, store: ImageStore, lie: dict[str, object], message: str
) -> None:
    name = registry.tag("app", registry.add_image([TOP]))
    for key, value in lie.items():
        setattr(registry, key, value)
    if not message:  # the extra bytes are beyond the body, so that nobody reads them
        store.pull(name)
        return
    with pytest.raises((BadImage, RegistryError), match=message):
        store.pull(name)
    assert store.images() == []
    assert is_clean(store)
    assert not any((store.folder / "blobs").iterdir())


def test_a_manifest_that_does_not_have_the_digest_of_its_name_is_refused(registry: Registry, store: ImageStore) -> None:
    registry.tag("app", manifest := registry.add_image([BASE]))
    registry.spoil = lambda digest, data: data + b" "
    with pytest.raises(BadImage, match="manifest that does not have its digest"):
        store.pull(f"{registry.host}/app@{manifest['digest']}")


def test_a_layer_with_another_diff_id_is_refused(registry: Registry, store: ImageStore) -> None:
    descriptor = registry.add_image([BASE])
    fields = json.loads(registry.data[descriptor["digest"]])
    fields["layers"] = [registry.add(gzip.compress(TOP), "application/vnd.oci.image.layer.v1.tar+gzip")]
    name = registry.tag("app", registry.add_json(fields, OCI_MANIFEST))
    with pytest.raises(BadImage, match="does not unpack to its diff-id"):
        store.pull(name)
    assert not list((store.folder / "layers").glob("*/*"))
    assert is_clean(store)


def test_a_bomb_is_refused_and_leaves_nothing(registry: Registry, tmp_path: Path) -> None:
    from harena.images.unpack.caps import Caps

    bomb = tar_of({"zeros": bytes(64 << 20)})
    store = ImageStore(
        tmp_path / "s", settings=ImageSettings(tmp_path), patience=QUICK, caps=Caps(archive_bytes=8 << 20)
    )
    with pytest.raises(BadImage, match="more than 8388608 bytes when unpacked"):
        store.pull(registry.tag("app", registry.add_image([bomb])))
    assert not list((store.folder / "layers").glob("*/*"))
    assert is_clean(store)


def test_a_hostile_layer_leaves_nothing(registry: Registry, store: ImageStore) -> None:
    from harena.images import ImageError

    with pytest.raises(ImageError):
        store.pull(registry.tag("app", registry.add_image([BASE, tar_of({"../../escape": b"x"})])))
    assert store.images() == []
    assert is_clean(store)


def test_a_truncated_gzip_layer_is_refused(registry: Registry, store: ImageStore) -> None:
    name = registry.tag("app", registry.add_image([TOP], compress=lambda data: gzip.compress(data)[:-9]))
    with pytest.raises(BadImage, match="gzip data are damaged"):
        store.pull(name)
    assert is_clean(store)


@pytest.mark.slow
def test_a_dripping_registry_is_given_up_on(registry: Registry, hurried: ImageStore) -> None:
    name = registry.tag("app", registry.add_image([tar_of({"x": os.urandom(9000)})]))
    registry.drip_s = 0.01
    started = time.monotonic()
    with pytest.raises(RegistryError, match=r"bytes a second|too long|does not answer"):
        hurried.pull(name)
    assert time.monotonic() - started < 60


def test_a_silent_registry_is_given_up_on(hurried: ImageStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        started = time.monotonic()
        with pytest.raises(RegistryError, match=r"does not answer; gave up after 3 tries"):
            hurried.pull(f"127.0.0.1:{port}/app")
        assert time.monotonic() - started < 15


def test_headers_that_never_end_are_given_up_on(store: ImageStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = server.accept()
                    threading.Thread(target=trickle, args=(peer,), daemon=True).start()

        def trickle(peer: socket.socket) -> None:
            with peer, contextlib.suppress(OSError):
                peer.sendall(b"HTTP/1.1 200 OK\r\n")
                while True:
                    peer.sendall(b"X")
                    time.sleep(0.05)

        threading.Thread(target=drip, daemon=True).start()
        quick = ImageStore(store.folder, settings=store.settings, patience=replace(QUICK, small_s=0.7, attempts=2))
        started = time.monotonic()
        with pytest.raises(RegistryError, match=r"takes too long to answer|does not answer"):
            quick.pull(f"127.0.0.1:{server.getsockname()[1]}/app")
        assert time.monotonic() - started < 10
        server.shutdown(socket.SHUT_RDWR)


def test_nobody_there_is_said_in_one_sentence(store: ImageStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(
        RegistryError, match=rf"^127.0.0.1:{port} cannot be reached: Connection refused; gave up after 3 tries$"
    ):
        store.pull(f"127.0.0.1:{port}/app")


def test_a_missing_tag_is_said_without_control_characters(registry: Registry, store: ImageStore) -> None:
    with pytest.raises(ImageNotFound, match=r"has no 7: check the name and the tag \(manifest  \[31munknown\)"):
        store.pull(f"{registry.host}/app:7")


def test_digest_helper_agrees_with_the_store(registry: Registry, store: ImageStore) -> None:
    image = store.pull(registry.tag("app", registry.add_image([BASE])))
    assert str(image.layers[0].diff_id) == digest_of(BASE)
