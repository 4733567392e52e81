"""The grammar of requirements, and the store that keeps what was installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harena import IsolationUnavailable, Spec, SpecError, parse_requirements
from harena.backends.local.requirements import index, store
from harena.backends.local.requirements.store import PackageStore

KEY = "0" * 32
OTHER = "1" * 32


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("numpy", "numpy"),
        (" Torch == 2.13.0 ", "torch==2.13.0"),
        ("ruamel.yaml>=0.18,<1", "ruamel-yaml<1,>=0.18"),
        ("httpx[http2, Brotli]~=0.28", "httpx[brotli,http2]~=0.28"),
        ("a!=1.0.*", "a!=1.0.*"),
        ("torch==2.1+cpu", "torch==2.1+cpu"),
        ("a==1!2.0", "a==1!2.0"),
    ],
)
def test_a_name_with_extras_and_versions_is_accepted(given: str, normal: str) -> None:
    assert Spec(requirements=(given,)).requirements == (normal,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-r other.txt",
        "--index-url=https://example.org",
        "-e .",
        ".",
        "./six",
        "/etc/passwd",
        "../six",
        "six @ https://example.org/six.whl",
        "https://example.org/six.whl",
        "git+https://example.org/six",
        "file:///tmp/six",
        "six.whl",
        "six-1.0.tar.gz",
        "six; python_version > '3'",
        "six --hash=sha256:0",
        "six==1 --global-option=x",
        "six\n--index-url=x",
        "six\0",
        "six==1;",
        "six===1",
        "six== ",
        "six[",
        "six[a",
        "six[]",
        "sïx",
        "$(id)",
        "six==`id`",
        "a" * 300,
    ],
)
def test_everything_else_is_refused_before_anything_happens(text: str) -> None:
    with pytest.raises(SpecError, match="requirements"):
        Spec(requirements=(text,))


def test_a_single_text_is_refused() -> None:
    with pytest.raises(SpecError, match="tuple"):
        Spec(requirements="six")  # pyright: ignore[reportArgumentType]


def test_a_box_from_an_image_or_a_rootfs_has_no_requirements() -> None:
    for bad in ({"image": "mine:1"}, {"rootfs": "/"}):
        with pytest.raises(SpecError, match="brings its packages"):
            Spec(requirements=("six",), **bad)  # pyright: ignore[reportArgumentType]


def test_a_requirements_file_has_requirements_comments_and_empty_lines() -> None:
    text = "\ufeff# tools\n\nSix == 1.17  # pinned\r\n  numpy>=2 \nsix==1.17\n"
    assert parse_requirements(text) == ("six==1.17", "numpy>=2")


@pytest.mark.parametrize("line", ["-r x.txt", "six \\", "six; os_name=='nt'", "--no-index", "a#b"])
def test_a_requirements_file_with_anything_else_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(SpecError, match="line 2"):
        parse_requirements(f"six\n{line}\n")


# ---- which index ----


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in [name for name in os.environ if name.startswith(("HARENA_PACKAGE", "PIP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return monkeypatch


def test_an_index_of_the_settings_is_the_only_host_that_is_allowed(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HARENA_PACKAGE_INDEX", "https://index.example:8443/simple")
    environment.setenv("HARENA_PACKAGE_HOSTS", "files.example:443")
    found = index.find(64)
    assert found.network is not None
    assert found.network.allow == ("index.example:8443", "files.example:443")
    assert found.arguments == ("--index-url", "https://index.example:8443/simple")


def test_pip_s_own_index_is_used_where_no_setting_names_one(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    found = index.find(64)
    assert found.network is not None
    assert found.network.allow == ("mirror.example:443",)
    environment.delenv("PIP_INDEX_URL")
    found = index.find(64)
    assert found.network is not None
    assert len(found.network.allow) == 2  # the index that pip defaults to, and the host of its files
    assert not found.network.private_names


@pytest.mark.parametrize(
    "bad",
    [
        "http://index.example/simple",
        "https://ann:secret@index.example/simple",
        "ftp://index.example",
        "https://",
        "https://index.example:x/",
        "/does/not/exist",
        "file://other/folder",
        "relative",
    ],
)
def test_an_index_that_cannot_be_trusted_or_found_is_refused(environment: pytest.MonkeyPatch, bad: str) -> None:
    environment.setenv("HARENA_PACKAGE_INDEX", bad)
    with pytest.raises(SpecError) as caught:
        index.find(64)
    assert "secret" not in str(caught.value)


# ---- the store ----


def write(folder: Path) -> None:
    (folder / "lib").mkdir()
    (folder / "lib" / "six.py").write_text("x = 1\n")


def refuse(folder: Path) -> None:
    raise AssertionError("it is installed already")


def test_a_set_is_installed_once_and_nobody_may_write_to_it(tmp_path: Path) -> None:
    sets = PackageStore(tmp_path / "packages")
    held = sets.hold(KEY, write)
    again = sets.hold(KEY, refuse)
    assert again.lib == held.lib
    assert [oct(path.stat().st_mode & 0o777) for path in (held.lib, held.lib / "six.py")] == ["0o555", "0o444"]
    held.close()
    again.close()


def test_links_and_modes_of_a_set_do_not_survive(tmp_path: Path) -> None:
    def hostile(folder: Path) -> None:
        (folder / "lib" / "closed").mkdir(parents=True)
        (folder / "lib" / "closed" / "run").write_text("")
        (folder / "lib" / "closed" / "run").chmod(0o4755)
        (folder / "lib" / "link").symlink_to("/etc")
        os.mkfifo(folder / "lib" / "pipe")
        (folder / "lib" / "closed").chmod(0)

    held = PackageStore(tmp_path).hold(KEY, hostile)
    assert sorted(os.listdir(held.lib)) == ["closed"]
    assert (held.lib / "closed" / "run").stat().st_mode & 0o7777 == 0o555
    held.close()


def test_a_failed_installation_leaves_nothing(tmp_path: Path) -> None:
    sets = PackageStore(tmp_path)

    def fail(folder: Path) -> None:
        write(folder)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        sets.hold(KEY, fail)
    assert os.listdir(tmp_path) == [f"{KEY}.lock"]
    sets.hold(KEY, write).close()


def test_a_set_in_use_is_not_removed_and_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    sets = PackageStore(tmp_path)
    held = sets.hold(KEY, write)
    sets.hold(OTHER, write).close()
    assert not sets.remove(KEY)
    os.utime(tmp_path / f"{KEY}.lock", (1, 1))
    assert [one.key for one in sets.sets()] == [OTHER, KEY]
    assert [one.key for one in sets.collect()] == [OTHER]  # the older one is in use
    held.close()
    assert [one.key for one in sets.collect(unused_s=60)] == [KEY]
    assert not sets.sets()


def test_collecting_keeps_what_fits_and_what_was_used_lately(tmp_path: Path) -> None:
    sets = PackageStore(tmp_path)
    for key in (KEY, OTHER):
        sets.hold(key, write).close()
    assert not sets.collect(max_bytes=1 << 20)
    assert not sets.collect(unused_s=3600)
    os.utime(tmp_path / f"{KEY}.lock", (1, 1))
    assert [one.key for one in sets.collect(unused_s=3600)] == [KEY]


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(IsolationUnavailable, match="HARENA_PACKAGES"):
        PackageStore(tmp_path).hold(KEY, write)


INSTALLER = """
import sys, time
from pathlib import Path
from harena.backends.local.requirements.store import PackageStore
def install(folder):
    (folder / "lib").mkdir()
    (folder / "lib" / "half.py").write_text("")
    print("installing", flush=True)
    time.sleep(float(sys.argv[2]))
PackageStore(Path(sys.argv[1])).hold("0" * 32, install)
print("done", flush=True)
"""


def test_a_killed_installer_leaves_no_set_and_the_next_one_installs(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INSTALLER, str(tmp_path), "60"], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "installing\n"
        os.kill(child.pid, signal.SIGKILL)
    assert (tmp_path / f"{KEY}.partial" / "lib" / "half.py").exists()
    sets = PackageStore(tmp_path)
    assert sets.sets() == []
    held = sets.hold(KEY, write)
    assert os.listdir(held.lib) == ["six.py"]
    assert not (tmp_path / f"{KEY}.partial").exists()
    held.close()


def test_what_a_killed_installer_left_is_collected(tmp_path: Path) -> None:
    write_to = tmp_path / f"{KEY}.partial"
    write_to.mkdir()
    write(write_to)
    store.seal(write_to)
    PackageStore(tmp_path).collect()
    assert not write_to.exists()


def test_two_processes_install_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INSTALLER, str(tmp_path), "1"]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = "".join(child.communicate(timeout=60)[0] for child in children)
    assert said.count("installing") == 1
    assert said.count("done") == 2


def test_a_removed_set_is_installed_again(tmp_path: Path) -> None:
    sets = PackageStore(tmp_path)
    sets.hold(KEY, write).close()
    assert sets.remove(KEY)
    assert not (tmp_path / KEY).exists()
    held = sets.hold(KEY, write)
    assert os.listdir(held.lib) == ["six.py"]
    held.close()
