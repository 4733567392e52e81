"""A folder of wheels for images that are built without a network: Harena, and what its extras need, as installed here."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

from support import podimage

ROOT = Path(__file__).parents[2]
EXTRAS = ("arena", "executor", "kubernetes", "operator", "postgres", "serve")
OF_PIP = {"INSTALLER", "REQUESTED", "RECORD", "direct_url.json"}
"""What pip wrote when it installed a distribution."""


def fill(folder: Path) -> None:
    folder.mkdir(parents=True)
    for distribution in [*podimage.closure("harena", EXTRAS), importlib.metadata.distribution("pip")]:
        pack(distribution, folder)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(ROOT)], check=True, timeout=300)


def pack(distribution: importlib.metadata.Distribution, folder: Path) -> None:
    """Undo an installation. Scripts are left out: pip makes those of entry points anew."""
    wheel = distribution.read_text("WHEEL") or ""
    tag = next(line.split()[1] for line in wheel.splitlines() if line.startswith("Tag:"))
    name = distribution.metadata["Name"].replace("-", "_").replace(".", "_")
    inside: list[str] = []
    with zipfile.ZipFile(
        folder / f"{name}-{distribution.version}-{tag}.whl", "w", zipfile.ZIP_DEFLATED, compresslevel=1
    ) as archive:
        for file in distribution.files or ():
            where = Path(str(distribution.locate_file(file)))
            own = file.name in OF_PIP and file.parent.name.endswith(".dist-info")
            if ".." in file.parts or own or where.suffix == ".pyc" or not where.is_file():
                continue
            archive.write(where, str(file))
            inside.append(str(file))
        info = next(path.split("/")[0] for path in inside if path.split("/")[0].endswith(".dist-info"))
        record = f"{info}/RECORD"
        archive.writestr(record, "".join(f"{path},,\n" for path in [*inside, record]))
