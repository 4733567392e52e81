"""Package managers, users and git in a box from a Debian image, offline, with all ids and with one."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harena import Limits, Sandbox, Spec
from harena.images import ImageStore
from harena.images.unpack.ids import Ids

ROOT = os.environ.get("HARENA_TEST_DEBIAN", "")
"""A tar of a Debian root: debootstrap --variant=minbase --include=python3,python3-pip,git,passwd."""
WIDE = Limits(wall_s=120, memory_mb=1024, processes=100)

pytestmark = [pytest.mark.thorough, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not ROOT:
        pytest.skip("HARENA_TEST_DEBIAN does not name the tar of a Debian root (debootstrap makes one)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARENA_IMAGES", os.environ.get("HARENA_TEST_STORE") or str(tmp_path_factory.mktemp("store")))
        store = ImageStore.default()
        found = store.find("debian:test") or store.import_file(ROOT, name="debian:test", is_root=True)[0]
        yield found.reference


@pytest.fixture(scope="module", params=["full", "single"])
def box(image: str, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    if Ids.of_host().kind != request.param:
        pytest.skip(f"host: its ids are {Ids.of_host().kind}")
    with Sandbox(Spec(image=image, workspace_mb=128), limits=WIDE) as box:
        yield box


def shell(box: Sandbox, line: str) -> str:
    result = box.exec(["bash", "-ec", line])
    assert result.ok, (line, result.verdict, result.stdout[-2000:], result.stderr[-2000:])
    return result.stdout.decode()


def test_apt_installs_from_a_local_folder(box: Sandbox, tmp_path: Path) -> None:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb: apt-get install dpkg")
    root = tmp_path / "package"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "usr/bin").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        "Package: harena-sample\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody\nDescription: a sample\n"
    )
    (root / "DEBIAN/postinst").write_text(
        "#!/bin/sh\nset -e\nadduser --system --group --quiet sample\ninstall -d -o sample -g sample /var/lib/sample\n"
    )
    (root / "DEBIAN/postinst").chmod(0o755)
    (root / "usr/bin/sample").write_text("#!/bin/sh\necho it works\n")
    (root / "usr/bin/sample").chmod(0o4755)
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", root, tmp_path / "sample.deb"], check=True)
    box.write("packages/sample.deb", (tmp_path / "sample.deb").read_bytes())
    shell(box, "apt-get install -y --no-install-recommends /workspace/packages/sample.deb")
    assert shell(box, "sample") == "it works\n"
    assert shell(box, "stat -c %a /usr/bin/sample") == "4755\n"
    assert "install ok installed" in shell(box, "dpkg -s harena-sample")
    owner = shell(box, "stat -c %U /var/lib/sample").strip()
    assert owner == ("sample" if Ids.of_host().kind == "full" else "root")
    shell(box, "apt-get remove -y harena-sample")
    assert shell(box, "test -e /usr/bin/sample || echo gone") == "gone\n"


def test_pip_installs_a_wheel(box: Sandbox, tmp_path: Path) -> None:
    wheel = tmp_path / "sample_module-1.0-py3-none-any.whl"
    files = {
        "sample_module.py": "answer = 42\n",
        "sample_module-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: sample-module\nVersion: 1.0\n",
        "sample_module-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, "sample_module-1.0.dist-info/RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**files, "sample_module-1.0.dist-info/RECORD": record}.items():
            archive.writestr(name, text)
    box.write(wheel.name, wheel.read_bytes())
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == box.sha256(wheel.name)
    shell(box, f"pip install --no-index --break-system-packages /workspace/{wheel.name}")
    assert box.run("import sample_module; print(sample_module.answer)").stdout == b"42\n"
    assert box.call("def f():\n    import sample_module\n    return sample_module.answer", "f").value == 42


def test_users_can_be_added(box: Sandbox) -> None:
    shell(box, "useradd --create-home --uid 4321 alice && chown -R alice: /home/alice")
    assert "alice:x:4321:" in shell(box, "cat /etc/passwd")
    who = shell(box, "su alice -c 'id -u; touch /home/alice/file; stat -c %u /home/alice/file'").split()
    assert who == (["4321", "4321"] if Ids.of_host().kind == "full" else ["0", "0"])


def test_git_commits_and_clones(box: Sandbox) -> None:
    shell(
        box,
        "mkdir /repository && cd /repository && git init -q . && echo text > file && git add file && "
        "git -c user.name=a -c user.email=a@b commit -qm first && git clone -q /repository /copy",
    )
    assert shell(box, "cat /copy/file; git -C /copy log --format=%s") == "text\nfirst\n"


def test_tar_unpacks_owners(box: Sandbox) -> None:
    shell(box, "cd /srv && touch a && chown 77:78 a && tar cf a.tar --numeric-owner a && rm a && tar xpf a.tar")
    assert shell(box, "stat -c %u:%g /srv/a").strip() == ("77:78" if Ids.of_host().kind == "full" else "0:0")
