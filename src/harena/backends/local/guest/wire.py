"""Constants of the protocol between host and box."""

from __future__ import annotations

import struct

MAGIC = 0x314E5248
MAX_FRAME = 64 << 20
HEAD = struct.Struct("<IHHII")
U32 = struct.Struct("<I")
RECORD = struct.Struct("<ciddII")
SPAWN = struct.Struct("<IIQQQQQIIIIIIIIIIIIHHI")
DONE = struct.Struct("<IiIiQQQQIIII")
CALL, ANSWER = 16, 80
OP_PING, OP_SPAWN, OP_KILL, OP_CONFIG, OP_ALLOW_FORKS, OP_USAGE = 1, 2, 3, 4, 5, 7
OP_PONG, OP_DONE, OP_STARTED, OP_ERROR, OP_OUTPUT = 65, 66, 67, 68, 69
EXEC, PROGRAM, SERVER, TRUSTED = 1, 2, 3, 4
CAPTURE, PTY, FRESH_FS, NOTIFY, BATCH = 1, 2, 4, 16, 32
ENDED_SELF, ENDED_WALL, ENDED_CPU, ENDED_MEMORY, ENDED_OUTPUT, ENDED_HOST = range(6)
