"""An S3 server of the tests' own: rclone, over a folder that outlives its process."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path

from support.servers import free_port

SOON_S = 60.0
KEY, SECRET = "test-key", "only-for-tests-and-long-enough"
BUCKET = "arena"


def program():
    """The one that pip has installed, or that is in the path; None: there is none."""
    installed = Path(sysconfig.get_path("scripts")) / "rclone"
    return str(installed) if installed.exists() else shutil.which("rclone")


class Bucket:
    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="harena-s3-"))
        (self.folder / "buckets" / BUCKET).mkdir(parents=True)
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.process = None
        self.start()

    def environ(self, options=""):
        return {
            "HARENA_STORAGE_URL": f"s3://{BUCKET}/some/prefix?endpoint={self.endpoint}{options}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def start(self):
        options = [
            f"--addr=127.0.0.1:{self.port}",
            f"--auth-key={KEY},{SECRET}",
            f"--config={self.folder}/none.conf",
        ]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [program(), "serve", "s3", self.folder / "buckets", *options], stdout=subprocess.DEVNULL, stderr=log
            )
        end = time.monotonic() + SOON_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                words = (self.folder / "log").read_text()
                assert self.process.poll() is None, words
                assert time.monotonic() < end, words
                time.sleep(0.02)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
