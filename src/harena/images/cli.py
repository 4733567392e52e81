"""Commands of `harena image`: options and exit codes. Errors are one line on stderr that says what to do."""

from __future__ import annotations

import argparse

from harena.command import UNAVAILABLE, USAGE, guarded
from harena.errors import HarenaError, SpecError
from harena.images.errors import ImageCancelled, ImageError, ImageStoreError, RegistryError

NO, PLATFORM, INTERRUPTED = 1, 125, 130

EXIT_CODES = """\
exit codes:
  0    success
  1    there is no such image, it is damaged or not safe to unpack, or a build failed
  2    invalid argument
  3    the registry cannot be reached or refuses access, or a package is missing; the message says what to do
  125  the store cannot be read or written
  130  interrupted by Ctrl-C; the next pull continues"""

EXAMPLES = """\
examples:
  harena image pull python:3.12-slim                 download an image, and unpack it for boxes
  harena image pull localhost:5000/task:1 --json     print what was pulled as JSON
  harena image import saved.tar                      take over an archive of `docker save` or an OCI layout
  harena image import rootfs.tar.gz --name mine:1    make an image from a root file system
  harena image build -t mine:2 .                     build the Dockerfile of this folder
  harena image export mine:2 mine.tar                write an archive for `docker load`
  harena image gc --max-gb 50                        remove images unused for longest until 50 GB are left"""


def fill(name: str, command: argparse.ArgumentParser) -> None:
    """Add the options and the actions of `harena image`."""
    raw = argparse.RawDescriptionHelpFormatter
    command.epilog = f"{EXAMPLES}\n\n{EXIT_CODES}"
    verbs = command.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(verb: str, text: str) -> argparse.ArgumentParser:
        part = verbs.add_parser(verb, help=text, description=text, epilog=EXIT_CODES, formatter_class=raw)
        part.add_argument("--json", action="store_true", help="print the result as JSON")

        def action(args: argparse.Namespace) -> int:
            from harena.images import commands

            return getattr(commands, f"{verb}_image")(args)

        part.set_defaults(
            action=guarded(
                action, extras={"zstandard": "images"}, code_of=_code, before_dashes="put names and options before it"
            )
        )
        return part

    def add_platform(part: argparse.ArgumentParser) -> None:
        part.add_argument("--platform", metavar="OS/ARCH", help="such as linux/arm64 (that of this machine)")

    pull = add("pull", "download an image from a registry and unpack its layers")
    pull.add_argument("images", nargs="+", metavar="IMAGE", help="such as python:3.12-slim or host:5000/name@sha256:…")
    add_platform(pull)
    pull.add_argument("-q", "--quiet", action="store_true", help="no progress, only the digest")

    take = add("import", "take over images from a `docker save` archive, an OCI layout or a root file system")
    take.add_argument("path", metavar="PATH", help="a tar (also compressed), or the folder of an OCI layout")
    take.add_argument("--name", metavar="NAME", help="name of the image, if it has none or should have another")
    take.add_argument("--root", action="store_true", help="the tar is a root file system, whatever it looks like")
    add_platform(take)

    build = add("build", "build an image from a Dockerfile, without Docker")
    build.add_argument("context", metavar="CONTEXT", help="folder of the files that COPY finds")
    build.add_argument("-f", "--file", metavar="FILE", help="the Dockerfile (CONTEXT/Dockerfile)")
    build.add_argument("-t", "--tag", metavar="NAME", help="name of the image (build:ID)")
    build.add_argument(
        "--build-arg", action="append", default=[], metavar="NAME=VALUE", help="value for an ARG; may be repeated"
    )
    build.add_argument("--target", metavar="STAGE", help="build this stage and what it needs (the last one)")
    build.add_argument("--no-cache", action="store_true", help="run every step again")
    build.add_argument(
        "--allow",
        "--network",
        dest="network",
        action="append",
        default=[],
        metavar="NAME:PORT",
        help="what RUN may reach; may be repeated (none)",
    )
    build.add_argument("--output", metavar="FILE", help="also write the image as an archive, as `export` does")
    build.add_argument("--root-mb", type=_megabytes, metavar="MB", help="how much one RUN may change, in memory (4096)")
    build.add_argument("-q", "--quiet", action="store_true", help="no progress, only the digest")

    export = add("export", "write an image as an archive that `docker load`, skopeo and `harena image import` read")
    export.add_argument("image", metavar="IMAGE")
    export.add_argument("path", metavar="FILE")
    add_platform(export)

    add("ls", "list the images of this user")

    inspect = add("inspect", "show the config and the layers of an image")
    inspect.add_argument("image", metavar="IMAGE")
    add_platform(inspect)

    remove = add("rm", "remove an image, and the layers that no other image has")
    remove.add_argument("images", nargs="+", metavar="IMAGE")
    add_platform(remove)

    collect = add("gc", "remove layers without an image and unfinished downloads; layers in use stay")
    collect.add_argument(
        "--max-gb", type=_gigabytes, metavar="GB", help="also remove images unused for longest, down to this size"
    )


def _megabytes(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:9]) <= 1 << 20):
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not a number of megabytes")
    return int(text)


def _gigabytes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not a number of gigabytes")
    return value


def _code(error: HarenaError) -> int | None:
    match error:
        case ImageCancelled():
            return INTERRUPTED
        case SpecError():
            return USAGE
        case RegistryError():
            return UNAVAILABLE
        case ImageStoreError():
            return PLATFORM
        case ImageError():
            return NO
        case _:
            return None
