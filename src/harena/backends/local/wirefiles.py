"""Writes native/wire.h and guest/wire.py from the table in wire.py: `make wire`. Decides nothing."""

from __future__ import annotations

import enum
from pathlib import Path

from harena.backends.local import wire

FOLDER = Path(__file__).parent
NAMES: tuple[tuple[type[enum.IntEnum | enum.IntFlag], str, str], ...] = (
    (wire.Op, "op", "OP"),
    (wire.Kind, "kind", "KIND"),
    (wire.Flag, "spawn_flag", "SPAWN"),
    (wire.Ended, "ended", "ENDED"),
    (wire.OutputStream, "stream", "STREAM"),
    (wire.Profile, "profile", "PROFILE"),
)
"""What an enumeration is called in C, and what its members begin with there and in the box."""
LAYOUTS = (
    ("head", wire.HEAD_FIELDS, wire.HEAD),
    ("spawn", wire.SPAWN_FIELDS, wire.SPAWN),
    ("done", wire.DONE_FIELDS, wire.DONE),
    ("socket_request", wire.SOCKET_FIELDS, wire.SOCKET),
    ("image_settings", wire.IMAGE_FIELDS, wire.IMAGE),
)
STRUCTS = (*((name.upper(), packed) for name, _, packed in LAYOUTS), ("RECORD", wire.RECORD), ("U32", wire.U32))
C_TYPES = {"H": "uint16_t", "I": "uint32_t", "i": "int32_t", "Q": "uint64_t"}
C_NOTE = "/* Made from wire.py by `make wire`; wire.py says what the names mean. */"
PYTHON_NOTE = (
    '"""Constants of the protocol. Made from ../wire.py by `make wire`; ../wire.py says what the names mean."""'
)


def header() -> str:
    """The text of native/wire.h."""
    lines = [C_NOTE, "#pragma once", "#include <stdint.h>", ""]
    lines += [f"#define MAGIC {wire.MAGIC:#x}u", f"#define MAX_FRAME {wire.MAX_FRAME}u"]
    lines += [f"#define MAX_FDS {wire.MAX_FDS}", f"#define PROFILES {len(wire.Profile)}"]
    for members, name, prefix in NAMES:
        lines += ["", f"enum {name} {{"]
        lines += [f"  {prefix}_{member.name} = {member.value}," for member in members]
        lines += ["};"]
    for name, fields, packed in LAYOUTS:
        lines += ["", f"struct {name} {{"]
        lines += [f"  {C_TYPES[code]} {', '.join(names.split())};" for code, names in fields]
        lines += ["};", f'_Static_assert(sizeof(struct {name}) == {packed.size}, "wire.py packs it without gaps");']
    return "\n".join(lines) + "\n"


def module() -> str:
    """The text of guest/wire.py."""
    lines = [PYTHON_NOTE, "", "from __future__ import annotations", "", "import struct", ""]
    lines += [f"MAGIC = 0x{wire.MAGIC:X}", f"MAX_FRAME = {wire.MAX_FRAME}", f"PROFILES = {len(wire.Profile)}"]
    lines += [f'{name} = struct.Struct("{packed.format}")' for name, packed in STRUCTS]
    lines += ["SPAWN_FIELDS = (", *(f'    "{name}",' for _, names in wire.SPAWN_FIELDS for name in names.split()), ")"]
    for members, _, prefix in NAMES:
        lines += [f"{prefix}_{member.name} = {member.value}" for member in members]
    lines += [f'MODE_{mode.name} = b"{mode.decode()}"' for mode in wire.Mode]
    return "\n".join(lines) + "\n"


def files() -> dict[Path, str]:
    return {FOLDER / "native" / "wire.h": header(), FOLDER / "guest" / "wire.py": module()}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
