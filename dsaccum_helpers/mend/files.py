"""A file as it is on the disk, with its own encoding and line ends, and a new text written in its place."""

from __future__ import annotations

import contextlib
import os

from dsaccum_helpers.job import JobError
from dsaccum_helpers.mend.tree import Unmendable

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["Originals", "encoded", "write"]


class Originals:
    """The texts of files by the names that a report gives them; what was uploaded comes from its pair, not the disk."""

    def __init__(self, paths: Iterable[Any]) -> None:
        self.content: dict[str, bytes] = {}
        self.encoding: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        for path in paths:
            if isinstance(path, tuple):
                name, content = path
                self.content[str(name)] = content.encode("utf-8", "replace") if isinstance(content, str) else content

    def text(self, name: str) -> str:
        """The text, line ends as they are. Raises ``Unmendable`` where the file is none, or no plain text."""
        if name not in self._texts:
            if name not in self.content:
                try:
                    with open(name, "rb") as handle:
                        self.content[name] = handle.read()
                except (OSError, ValueError) as error:
                    raise Unmendable(f"{name} cannot be read: {error}") from None
            content = self.content[name]
            marks = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
            self.encoding[name] = next((code for mark, code in marks.items() if content.startswith(mark)), "utf-8")
            try:
                self._texts[name] = content.decode(self.encoding[name])
            except UnicodeDecodeError:
                raise Unmendable(f"{name} is not in UTF-8") from None
        return self._texts[name]


def write(name: str, text: str, before: bytes, encoding: str) -> str:
    """Put the text in the file's place in one step and keep the old file beside it; the name of the old one.

    A symbolic link is followed. Raises ``JobError`` where the file may not be written or has changed meanwhile.
    """
    import tempfile

    path = os.path.realpath(name)
    temporary: str | None = None
    kept: str | None = None
    try:
        status = os.stat(path)
        if not status.st_mode & 0o222:
            raise PermissionError(13, "it is read-only")
        with open(path, "rb") as handle:
            if handle.read() != before:
                raise JobError(f"--write: {name} changed while it was checked. Smallest fix: check it again.")
        descriptor, kept = _kept(path)
        _fill(descriptor, kept, before, status)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=os.path.dirname(path))
        _fill(descriptor, temporary, encoded(text, encoding, before), status)
        os.replace(temporary, path)
        stays = kept
        temporary = kept = None
    except OSError as error:
        why = error.strerror or str(error)
        raise JobError(f"--write: {name} cannot be written ({why}). Smallest fix: --fix shows the change.") from None
    finally:
        for half_made in (temporary, kept):
            if half_made:
                os.unlink(half_made)
    return os.path.join(os.path.dirname(name), os.path.basename(stays)) if not os.path.islink(name) else stays


def encoded(text: str, encoding: str, before: bytes) -> bytes:
    """The text in the encoding of the file, its byte order included."""
    if encoding == "utf-16" and before.startswith(b"\xfe\xff"):
        return b"\xfe\xff" + text.encode("utf-16-be")
    return text.encode(encoding)


def _kept(path: str) -> tuple[int, str]:
    """A new file beside this one, under the first of NAME.orig, NAME.orig1, ... that is free."""
    for number in range(1000):
        kept = f"{path}.orig{number or ''}"
        try:
            return os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), kept
        except FileExistsError:
            continue
    raise OSError(17, f"{path}.orig to {path}.orig999 exist")


def _fill(descriptor: int, path: str, content: bytes, status: os.stat_result) -> None:
    """Write content that survives a crash, with the mode of another file and, where we may, its owner."""
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    with contextlib.suppress(OSError, AttributeError):  # only root gives files away; Windows has no owners
        os.chown(path, status.st_uid, status.st_gid)
    os.chmod(path, status.st_mode & 0o7777)
