"""Constants of the protocol. Made from ../wire.py by `make wire`; ../wire.py says what the names mean."""

from __future__ import annotations

import struct

MAGIC = 0x314E5248
MAX_FRAME = 67108864
PROFILES = 4
HEAD = struct.Struct("<IHHII")
SPAWN = struct.Struct("<IIQQQQQIIIIIIIIIIIIHHI")
DONE = struct.Struct("<IiIiQQQQIIII")
SOCKET_REQUEST = struct.Struct("<IIII")
IMAGE_SETTINGS = struct.Struct("<IIIIIIQQ")
RECORD = struct.Struct("<ciddII")
U32 = struct.Struct("<I")
SPAWN_FIELDS = (
    "kind",
    "flags",
    "wall_ns",
    "cpu_ns",
    "memory",
    "output",
    "fs_bytes",
    "processes",
    "nofile",
    "profile",
    "view",
    "records",
    "ahead",
    "argc",
    "envc",
    "strings_len",
    "cwd_len",
    "stdin_len",
    "payload_len",
    "rows",
    "cols",
    "result",
)
OP_PING = 1
OP_SPAWN = 2
OP_KILL = 3
OP_CONFIG = 4
OP_ALLOW_FORKS = 5
OP_VIEW = 6
OP_USAGE = 7
OP_CANCEL_FORKS = 8
OP_SOCKET = 9
OP_CHANGES = 10
OP_CALL = 16
OP_PONG = 65
OP_DONE = 66
OP_STARTED = 67
OP_ERROR = 68
OP_OUTPUT = 69
OP_ANSWER = 80
KIND_EXEC = 1
KIND_PROGRAM = 2
KIND_SERVER = 3
KIND_TRUSTED = 4
KIND_VIEW = 5
SPAWN_CAPTURE = 1
SPAWN_PTY = 2
SPAWN_FRESH_FS = 4
SPAWN_FORKABLE = 8
SPAWN_NOTIFY = 16
SPAWN_BATCH = 32
ENDED_SELF = 0
ENDED_WALL = 1
ENDED_CPU = 2
ENDED_MEMORY = 3
ENDED_OUTPUT = 4
ENDED_HOST = 5
ENDED_DISK = 6
STREAM_OUT = 0
STREAM_ERR = 1
STREAM_RESULT = 2
PROFILE_SESSION = 0
PROFILE_PROGRAM = 1
PROFILE_INTERPRETER = 2
PROFILE_TALK = 3
MODE_PROGRAM = b"P"
MODE_GROUP = b"G"
MODE_CALL = b"C"
MODE_SERVER = b"S"
MODE_TALK = b"T"
