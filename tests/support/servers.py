"""Servers of the tests' own. PostgreSQL: a cluster in a folder that goes away with it, reached only by a socket in
there. Redis and RabbitMQ: on free ports of loopback."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

DEBIAN = Path("/usr/lib/postgresql")
SOON_S = 240.0
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_connections": "100",
}


def programs():
    """The folder that holds `initdb` and `postgres`, of the newest version; None: there is none."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    versions = sorted(DEBIAN.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return versions[-1].parent if versions else None


class Postgres:
    def __init__(self, bin_folder):
        self.bin = bin_folder
        self.folder = Path(tempfile.mkdtemp(prefix="harena-pg-"))
        self.process = None
        self._prepared = False
        self.who = {}
        if os.geteuid() == 0:  # which PostgreSQL refuses to be
            names = {user.pw_name: user for user in pwd.getpwall()}
            user = names.get("postgres") or names["nobody"]
            self.who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        try:
            self._run(
                "initdb",
                "-D",
                self.folder / "data",
                "-A",
                "trust",
                "-U",
                "harena",
                "-E",
                "UTF8",
                "--locale=C",
                "--no-sync",
                "--no-instructions",
            )
            self.start()
        except BaseException:
            self.close()
            raise

    def _run(self, program, *arguments):
        done = subprocess.run(
            [self.bin / program, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=SOON_S,
            **self.who,
        )
        assert done.returncode == 0, done.stderr

    def start(self):
        options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [self.bin / "postgres", "-D", self.folder / "data", "-k", self.folder, *options],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self.who,
            )
        end = time.monotonic() + SOON_S
        while True:
            try:
                self.sql("SELECT 1")
                return
            except Exception:
                words = (self.folder / "log").read_text()
                assert self.process.poll() is None, words
                assert time.monotonic() < end, words
                time.sleep(0.02)

    def stop(self):
        """At once, as a server that is told to: whoever is connected is thrown out."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(SOON_S)

    def close(self):
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.send_signal(signal.SIGQUIT)
                self.process.wait(SOON_S)
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def sql(self, statement, database="postgres"):
        import psycopg

        with psycopg.connect(f"host={self.folder} user=harena dbname={database}", autocommit=True) as connection:
            return connection.execute(statement)

    def emptied(self):
        """The URL of the one database, with nothing in it: quicker than a new one."""
        self.sql("DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public")
        return self.url("postgres")

    def prepared(self):
        """The URL of a database with every table and no rows. It is made once and then only cleared: to make the
        tables anew takes ten times as long. Whoever changes the tables themselves asks for `emptied`."""
        from harena.arena.db import models
        from harena.arena.db.store import Store

        if not self._prepared:
            self.sql("CREATE DATABASE arena")
            Store(self.url("arena")).close()
            self._prepared = True
        names = [table.name for table in models.metadata.sorted_tables if table is not models.schema_version]
        self.sql(
            "SET session_replication_role = replica; "  # whose rows refer to each other
            + "".join(f"DELETE FROM {name}; " for name in names)
            + "SELECT setval(oid, 1, false) FROM pg_class WHERE relkind = 'S'",
            "arena",
        )
        return self.url("arena")

    def url(self, database):
        return f"postgresql://harena@/{database}?host={self.folder}"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Redis:
    """A Redis of the tests' own, without a file on disk."""

    PROGRAM = "redis-server"

    def __init__(self):
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + SOON_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self.process.poll() is None, "redis-server has ended"
                assert time.monotonic() < end
                time.sleep(0.02)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def client(self):
        import redis

        return redis.Redis(port=self.port, socket_timeout=SOON_S)

    def close(self):
        self.kill()


class RabbitMQ:
    """A RabbitMQ of the tests' own, with its files in a folder that goes away with it."""

    PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    """The one in the path changes to another user, and listens where its package says."""
    BOOT_S = 180.0
    """It needs seconds of processor time to start, and the machine may be busy."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="harena-rabbit-"))
        self.port, names, self.dist = free_port(), free_port(), free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}//"
        (self.folder / "plugins").write_text("[].")
        self.environ = os.environ | {
            "HOME": str(self.folder),  # of the cookie
            "RABBITMQ_NODENAME": f"harena{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.dist),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 -kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(names),
        }
        # Its own, in the foreground: Erlang would start one that outlives it.
        self.names = subprocess.Popen(["epmd"], env=self.environ)
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self):
        with open(self.folder / "out", "ab") as out:
            self.process = subprocess.Popen(
                [self.PROGRAM],
                cwd=self.folder,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        end = time.monotonic() + self.BOOT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                words = (self.folder / "out").read_text()
                assert self.process.poll() is None, words
                assert time.monotonic() < end, words
                time.sleep(0.05)

    def kill(self):
        """With everything that it has kept."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.folder / "data", ignore_errors=True)

    def close(self):
        self.kill()
        self.names.kill()
        self.names.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
