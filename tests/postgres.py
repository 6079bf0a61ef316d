"""PostgreSQL server for the tests: started in a temporary folder, with a database for each test."""

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
from collections.abc import Iterator
from pathlib import Path

import psycopg
from sqlalchemy import URL

USER, PASSWORD = "ada", "s3cret-of-the-tests"
_UNPRIVILEGED = "postgres"  # the server refuses to run as root
_LONGEST = 300.0  # seconds allowed for a start on a busy machine


def programs() -> Path | None:
    """Return the folder of the server programs; Debian has one folder per version, not on the path."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -int(path.parent.name))
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


class Server:
    """A server that listens on 127.0.0.1 only and requires a password."""

    def __init__(self, bin_folder: Path, folder: Path) -> None:
        self.bin, self.folder = bin_folder, folder
        self.user = _UNPRIVILEGED if os.getuid() == 0 else None
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._made = 0
        secret = folder / "password"
        secret.write_text(PASSWORD)
        if self.user is not None:
            owner = pwd.getpwnam(self.user)
            for path in (folder, secret):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        subprocess.run(
            [
                *(self.bin / "initdb", "--pgdata", folder / "data", "--username", USER, "--pwfile", secret),
                *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync"),
            ],
            user=self.user,
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def url(self, database: str = "postgres", *, user: str = USER, password: str = PASSWORD) -> str:
        """Return the address of one of its databases, including the password."""
        address = URL.create(
            "postgresql", username=user, password=password, host="127.0.0.1", port=self.port, database=database
        )
        return address.render_as_string(hide_password=False)

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "fsync": "off",
            "max_connections": 200,
        }
        flags = [f"--{name}={value}" for name, value in settings.items()]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.bin / "postgres", "-D", self.folder / "data", *flags],
                user=self.user,
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + _LONGEST
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError((self.folder / "log").read_text()) from None
                time.sleep(0.05)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server at once, closing all connections; with SIGQUIT as in a crash, from which it recovers."""
        if self._process is not None:
            self._process.send_signal(how)  # SIGINT: PostgreSQL's "fast" shutdown
            self._process.wait(_LONGEST)
            self._process = None

    def run(self, statement: str, database: str = "postgres") -> None:
        """Run one SQL statement as the superuser."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]

    def create(self) -> str:
        """Create an empty database; return its address."""
        self._made += 1
        name = f"test_{self._made}"
        self.run(f"CREATE DATABASE {name}")
        return self.url(name)

    def cut(self, address: str) -> None:
        """Close all connections to a database, in the middle of whatever they do."""
        name = address.rpartition("/")[2]
        self.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")

    def drop(self, address: str) -> None:
        """Drop a database, even if it is in use."""
        self.run(f"DROP DATABASE {address.rpartition('/')[2]} WITH (FORCE)")


@contextlib.contextmanager
def running(bin_folder: Path) -> Iterator[Server]:
    """Start a server in a temporary folder; stop it and remove the folder on exit."""
    folder = Path(tempfile.mkdtemp(prefix="recovery-postgres-"))
    try:
        server = Server(bin_folder, folder)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
