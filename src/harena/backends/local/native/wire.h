/* Made from wire.py by `make wire`; wire.py says what the names mean. */
#pragma once
#include <stdint.h>

#define MAGIC 0x314e5248u
#define MAX_FRAME 67108864u
#define MAX_FDS 8
#define PROFILES 4

enum op {
  OP_PING = 1,
  OP_SPAWN = 2,
  OP_KILL = 3,
  OP_CONFIG = 4,
  OP_ALLOW_FORKS = 5,
  OP_VIEW = 6,
  OP_USAGE = 7,
  OP_CANCEL_FORKS = 8,
  OP_SOCKET = 9,
  OP_CHANGES = 10,
  OP_CALL = 16,
  OP_PONG = 65,
  OP_DONE = 66,
  OP_STARTED = 67,
  OP_ERROR = 68,
  OP_OUTPUT = 69,
  OP_ANSWER = 80,
};

enum kind {
  KIND_EXEC = 1,
  KIND_PROGRAM = 2,
  KIND_SERVER = 3,
  KIND_TRUSTED = 4,
  KIND_VIEW = 5,
};

enum spawn_flag {
  SPAWN_CAPTURE = 1,
  SPAWN_PTY = 2,
  SPAWN_FRESH_FS = 4,
  SPAWN_FORKABLE = 8,
  SPAWN_NOTIFY = 16,
  SPAWN_BATCH = 32,
};

enum ended {
  ENDED_SELF = 0,
  ENDED_WALL = 1,
  ENDED_CPU = 2,
  ENDED_MEMORY = 3,
  ENDED_OUTPUT = 4,
  ENDED_HOST = 5,
  ENDED_DISK = 6,
};

enum stream {
  STREAM_OUT = 0,
  STREAM_ERR = 1,
  STREAM_RESULT = 2,
};

enum profile {
  PROFILE_SESSION = 0,
  PROFILE_PROGRAM = 1,
  PROFILE_INTERPRETER = 2,
  PROFILE_TALK = 3,
};

struct head {
  uint32_t magic;
  uint16_t op, nfds;
  uint32_t id, len;
};
_Static_assert(sizeof(struct head) == 16, "wire.py packs it without gaps");

struct spawn {
  uint32_t kind, flags;
  uint64_t wall_ns, cpu_ns, memory, output, fs_bytes;
  uint32_t processes, nofile, profile, view;
  uint32_t records;
  uint32_t ahead;
  uint32_t argc, envc, strings_len, cwd_len, stdin_len, payload_len;
  uint16_t rows, cols;
  uint32_t result;
};
_Static_assert(sizeof(struct spawn) == 104, "wire.py packs it without gaps");

struct done {
  uint32_t ended;
  int32_t wstatus;
  uint32_t hits;
  int32_t exec_errno;
  uint64_t wall_ns, cpu_ns, peak_kb, written;
  uint32_t out_len, err_len, res_len, records;
};
_Static_assert(sizeof(struct done) == 64, "wire.py packs it without gaps");

struct socket_request {
  uint32_t view, family, type;
  uint32_t routed;
};
_Static_assert(sizeof(struct socket_request) == 16, "wire.py packs it without gaps");

struct image_settings {
  uint32_t full, uid, gid, layers, argc, envc;
  uint64_t keep, root_bytes;
};
_Static_assert(sizeof(struct image_settings) == 40, "wire.py packs it without gaps");
