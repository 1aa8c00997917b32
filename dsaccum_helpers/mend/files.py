"""A file as it is on the disk, with its own encoding and line ends, and a new text written in its place."""

from __future__ import annotations

import os

from dsaccum_helpers.job import JobError
from dsaccum_helpers.mend.tree import Unmendable

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["Originals", "write"]


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
    temporary = None
    try:
        mode = os.stat(path).st_mode & 0o7777
        if not mode & 0o222:
            raise PermissionError(13, "it is read-only")
        with open(path, "rb") as handle:
            if handle.read() != before:
                raise JobError(f"--write: {name} changed while it was checked. Smallest fix: check it again.")
        kept = _kept(path, before, mode)
        handle_number, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=os.path.dirname(path))
        with os.fdopen(handle_number, "wb") as handle:
            handle.write(text.encode(encoding))
            handle.flush()
            os.fsync(handle.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        why = error.strerror or str(error)
        raise JobError(f"--write: {name} cannot be written ({why}). Smallest fix: --fix shows the change.") from None
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
    return os.path.join(os.path.dirname(name), os.path.basename(kept)) if not os.path.islink(name) else kept


def _kept(path: str, content: bytes, mode: int) -> str:
    """The old content beside the file, under the first of NAME.orig, NAME.orig1, ... that is free."""
    for number in range(1000):
        kept = f"{path}.orig{number or ''}"
        try:
            descriptor = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(content)
        os.chmod(kept, mode)
        return kept
    raise OSError(17, f"{path}.orig to {path}.orig999 exist")
