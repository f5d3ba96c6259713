"""Write the six novels of the Debian package `r-cran-janeaustenr` as text files, a folder for `tasks.prose.Prose`.

    python -m selfcest_env.tasks.novels novels
    python -m selfcest_env.tasks.novels novels --package r-cran-janeaustenr_1.0.0-1_all.deb

The novels of Jane Austen are in the public domain, from Project Gutenberg. The package is an `ar` archive with a tar
file. In it, R's file of lazily loaded data is a sequence of records: the size of the data in four bytes, and the data
compressed by zlib, an R object in R's serialisation (R Internals, section 1.8). Each object is a vector of lines.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import io
import re
import struct
import sys
import tarfile
import urllib.request
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from selfcest_env.errors import DataError, SelfcestError

PACKAGE = "https://deb.debian.org/debian/pool/main/r/r-cran-janeaustenr/r-cran-janeaustenr_1.0.0-1_all.deb"
_PACKAGE_SHA256 = "df6bddf211906d1ff404f8ff662c21b34e6660e7f54a311084e749050c019c95"
# Of each book as this script writes it, so that all results are on the same sentences.
_BOOK_SHA256 = {
    "emma": "7c67b5985c6d0de1efaeb5d342d52cb82c38083c40e2295129e30e87ee690ebe",
    "mansfield_park": "98bc90519cdf4ef663ad7de2734bb529435ef24f7abbde6bb1a50898871dafe9",
    "northanger_abbey": "51f91bbe0517db8e65cff009b097ce0a1836124c4e0532ac19e6c0cad982abed",
    "persuasion": "8061549557aebd2fd6e353d18d9197cb707029112bd52d4d8b174583a925848a",
    "pride_and_prejudice": "dfc684d4f857fa938268f9ab9c5567b64bd0691251eca959644adeabe6287a4d",
    "sense_and_sensibility": "105e1651fe93bed7130078578efd31e0c557d68667ba672ddc876f735b30fe09",
}
_DATA = "janeaustenr/data/Rdata.rdb"
_AR_MAGIC = b"!<arch>\n"
_AR_HEADER = 60  # bytes: name (16), time, owner, group and mode (32), size (10), end (2)
# Types of objects in R's serialisation: the lowest byte of four.
_STRING_VECTOR = 16
_STRING = 9
_TIMEOUT = 60.0  # seconds


def main(arguments: list[str] | None = None) -> int:
    """Write the novels. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m selfcest_env.tasks.novels", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of the text files, which is made")
    parser.add_argument("--package", default=PACKAGE, help="path or URL of the .deb file (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        package = read_package(options.package)
        if options.package == PACKAGE:
            _check_sha256(package)
        novels = read_novels(package, options.package)
        different = find_different_books(novels)
        if different and options.package == PACKAGE:
            raise DataError(f"{PACKAGE}: {different}; report it, since the package itself is the expected one")
        if different:
            print(f"warning: {options.package}: {different}; results on it are of other texts", file=sys.stderr)
        options.folder.mkdir(parents=True, exist_ok=True)
        for title, text in novels.items():
            file = options.folder / f"{title}.txt"
            content = text.encode()
            file.write_bytes(content)
            print(f"{file}: {len(text.split())} words, SHA-256 {hashlib.sha256(content).hexdigest()}")
    except (SelfcestError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _check_sha256(package: bytes) -> None:
    """Raise `DataError` if the download is another package, so that all results are on the same novels."""
    sha256 = hashlib.sha256(package).hexdigest()
    if sha256 != _PACKAGE_SHA256:
        raise DataError(
            f"{PACKAGE}: the download has the SHA-256 {sha256}; expected {_PACKAGE_SHA256}. Download it again, or give "
            "a package that you trust by --package"
        )


def find_different_books(novels: Mapping[str, str]) -> str:
    """Return a phrase that names the books whose SHA-256 is not the pinned one; empty if there is none."""
    different = []
    for title in sorted(_BOOK_SHA256.keys() | novels.keys()):
        text = novels.get(title)
        if text is None or hashlib.sha256(text.encode()).hexdigest() != _BOOK_SHA256.get(title):
            different.append(title)
    if not different:
        return ""
    return f"{len(different)} books are missing, unknown or have another SHA-256 than expected: {', '.join(different)}"


def read_package(source: str) -> bytes:
    """Return the bytes of a file, or of a URL. Raises `DataError` if it cannot be read."""
    if re.match(r"https?://", source) is None:
        try:
            return Path(source).read_bytes()
        except OSError as error:
            raise DataError(
                f"{source}: cannot be read: {error.strerror}; give the path or the URL of the .deb file"
            ) from error
    try:
        with urllib.request.urlopen(source, timeout=_TIMEOUT) as response:
            content: bytes = response.read()
            return content
    except (OSError, http.client.HTTPException) as error:
        raise DataError(
            f"{source}: cannot be downloaded: {error}; download the package elsewhere and give its path by --package"
        ) from error


def read_novels(package: bytes, source: str) -> dict[str, str]:
    """Return the texts of a package by their titles in small letters, such as `pride_and_prejudice`.

    Args:
        package: content of the .deb file.
        source: path or URL of it, for messages.

    Raises:
        DataError: it is no such package.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(_read_data_archive(package))) as archive:
            names = [name for name in archive.getnames() if name.endswith(_DATA)]
            if not names:
                raise DataError(f"{source}: the package has no {_DATA}; expected r-cran-janeaustenr")
            stream = archive.extractfile(names[0])
            assert stream is not None  # it is a file
            records = stream.read()
        novels: dict[str, str] = {}
        for content in _decompress(records):
            lines = _read_lines(content)
            title = next(line for line in lines if line.strip())
            novels[re.sub(r"[^a-z]+", "_", title.lower()).strip("_")] = "\n".join(lines) + "\n"
    except (tarfile.TarError, zlib.error, struct.error, ValueError, StopIteration) as error:
        raise DataError(
            f"{source}: not the expected package: {error}; expected the .deb of r-cran-janeaustenr"
        ) from error
    return novels


def _read_data_archive(package: bytes) -> bytes:
    """Return the member `data.tar.*` of an `ar` archive."""
    if not package.startswith(_AR_MAGIC):
        raise ValueError("it does not begin like a .deb file")
    position = len(_AR_MAGIC)
    while position + _AR_HEADER <= len(package):
        header = package[position : position + _AR_HEADER]
        size = int(header[48:58])
        position += _AR_HEADER
        if header[:16].startswith(b"data.tar"):
            return package[position : position + size]
        position += size + size % 2  # members begin at even positions
    raise ValueError("it has no data.tar")


def _decompress(records: bytes) -> Iterator[bytes]:
    """Yield the content of each record: its size in four bytes, the highest first, and a zlib stream."""
    while records:
        (size,) = struct.unpack(">I", records[:4])
        stream = zlib.decompressobj()
        content = stream.decompress(records[4:])
        if not stream.eof or len(content) != size:
            raise ValueError(f"a record has {len(content)} bytes where {size} were announced")
        yield content
        records = stream.unused_data


def _read_lines(content: bytes) -> list[str]:
    """Return the strings of a serialised vector of strings, in R's binary format of version 2 or 3."""
    if content[:2] != b"X\n":
        raise ValueError("an object is not in R's binary format")
    reader = io.BytesIO(content[2:])

    def read_integer() -> int:
        (number,) = struct.unpack(">i", reader.read(4))
        return int(number)

    version = read_integer()
    reader.read(8)  # the versions of R that wrote it, and that can read it
    if version == 3:
        reader.read(read_integer())  # name of the native encoding
    if read_integer() & 0xFF != _STRING_VECTOR:
        raise ValueError("an object is no vector of strings")
    lines: list[str] = []
    for _ in range(read_integer()):
        if read_integer() & 0xFF != _STRING:
            raise ValueError("a vector of strings has another object")
        size = read_integer()  # -1 is a missing string
        lines.append(reader.read(size).decode() if size > 0 else "")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
