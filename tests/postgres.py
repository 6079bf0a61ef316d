"""A PostgreSQL server of the tests' own: started in a temporary folder, with a database for each test."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
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
_LONGEST = 300.0  # seconds a start may take on a busy machine


def programs() -> Path | None:
    """The folder of the server's programs: Debian keeps them off the path, one folder a version."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -int(path.parent.name))
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


class Server:
    """A server that answers on 127.0.0.1 only and asks for a password."""

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
        """The address of one of its databases, with the password."""
        address = URL.create(
            "postgresql", username=user, password=password, host="127.0.0.1", port=self.port, database=database
        )
        return address.render_as_string(hide_password=False)

    def start(self) -> None:
        """Start it, and wait until it answers."""
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

    def stop(self) -> None:
        """Stop it at once: whoever is connected is thrown out."""
        if self._process is not None:
            self._process.send_signal(2)  # SIGINT: PostgreSQL's "fast" shutdown
            self._process.wait(_LONGEST)
            self._process = None

    def run(self, statement: str, database: str = "postgres") -> None:
        """Run one statement of SQL as the owner of everything."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]

    def create(self) -> str:
        """A new, empty database: its address."""
        self._made += 1
        name = f"test_{self._made}"
        self.run(f"CREATE DATABASE {name}")
        return self.url(name)

    def drop(self, address: str) -> None:
        """Remove a database, whoever still uses it."""
        self.run(f"DROP DATABASE {address.rpartition('/')[2]} WITH (FORCE)")


@contextlib.contextmanager
def running(bin_folder: Path) -> Iterator[Server]:
    """A started server in a folder that goes with it."""
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
