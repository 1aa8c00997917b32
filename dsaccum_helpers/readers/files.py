"""From a path, standard input or an upload to text: one clear line for whatever cannot be read."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections import namedtuple

from dsaccum_helpers.job import JobError

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

STANDARD_INPUT = "standard input"
LARGEST = 256 * 1024 * 1024
_MARKS = (
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
#: The pipe of a shell's ``<(...)``, and standard input by its name.
_PIPE = re.compile(r"/dev/(fd/\d+|stdin)$|/proc/self/fd/\d+$")
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
#: What no text holds; tabs, line ends, backspaces of progress bars and the escape of colours are left out.
_CONTROL = re.compile(r"[\x00-\x06\x0e-\x1a\x1c-\x1f]")

Document = namedtuple("Document", "name text folder encoding ending")
Document.__doc__ = """One thing to read.

``name``: as in reports. ``text``: without a byte-order mark, lines ended by ``\\n``. ``folder``: that of the file, to
find what it refers to; None for an upload. ``encoding``: ``utf-8``, or what the file has in its place.
``ending``: the last part of the name, in small letters with its dot.
"""


def load(path: Any) -> Document:
    """The Document of a path, of ``-`` (standard input), or of a (name, text or bytes) pair."""
    if isinstance(path, tuple):
        name, content = path
        if isinstance(content, str):
            content = content.encode("utf-8", "surrogatepass")
        return document(str(name), bytes(content), os.curdir if name == STANDARD_INPUT else None)
    try:
        name = os.fsdecode(os.fspath(path))
    except TypeError:
        raise JobError(f"{path!r:.60} is no path. Smallest fix: give a file name, '-' or a dict.") from None
    if name == "-":
        return document(STANDARD_INPUT, _standard_input(), os.curdir)
    return document(name, _content(name), os.path.dirname(name) or os.curdir)


def kept(path: Any) -> Any:
    """The path; for standard input and pipes, which can be read once only, the pair of name and content."""
    if path == "-":
        return STANDARD_INPUT, _standard_input()
    return (path, _content(path)) if isinstance(path, str) and _PIPE.match(path) and not is_file(path) else path


def document(name: str, content: bytes, folder: str | None) -> Document:
    """The Document of these bytes; JobError where they are no text."""
    if len(content) > LARGEST:
        size = f"larger than {LARGEST >> 20} MB"
        raise JobError(f"{_shown(name)} is {size}. Smallest fix: give its last part (tail -n 10000).")
    text, encoding = _decoded(name, content)
    if not text.strip():
        raise JobError(f"{_shown(name)} is empty. Smallest fix: give the file with its content, or leave it out.")
    ending = os.path.splitext(name)[1].lower()
    return Document(name, text.replace("\r\n", "\n").replace("\r", "\n"), folder, encoding, ending)


def is_file(path: str) -> bool:
    """Is there a regular file that can be opened without waiting?"""
    try:
        return stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.R_OK)
    except (OSError, ValueError):
        return False


def _standard_input() -> bytes:
    stream = getattr(sys.stdin, "buffer", None)
    return stream.read(LARGEST + 1) if stream else sys.stdin.read(LARGEST + 1).encode("utf-8", "replace")


def _content(name: str) -> bytes:
    """The bytes of a regular file, or of the pipe that a shell's ``<(...)`` made."""
    try:
        mode = os.stat(name).st_mode
        if stat.S_ISREG(mode):
            # Some files of /proc would wait for more, as pipes do.
            with open(name, "rb", opener=lambda path, flags: os.open(path, flags | _NO_WAIT)) as handle:
                # A limit of the whole size would be set aside at once; files of /proc say a size of 0.
                return handle.read(min(LARGEST, os.fstat(handle.fileno()).st_size or LARGEST) + 1) or b""
        if _PIPE.match(name) and not stat.S_ISDIR(mode):
            with open(name, "rb") as handle:
                return handle.read(LARGEST + 1)
    except FileNotFoundError:
        raise JobError(f"{_shown(name)} does not exist. Smallest fix: check the path and its folder.") from None
    except PermissionError:
        raise JobError(f"{_shown(name)} may not be read. Smallest fix: chmod u+r, or read it as its owner.") from None
    except (OSError, ValueError, MemoryError) as error:
        why = getattr(error, "strerror", None) or str(error) or "not enough memory"
        raise JobError(f"{_shown(name)} cannot be read ({why}). Smallest fix: give another path to it.") from None
    shown = _shown(name)
    if stat.S_ISDIR(mode):
        raise JobError(f"{shown} is a folder. Smallest fix: give the files in it, for example {shown.rstrip('/')}/*.")
    raise JobError(f"{shown} is no regular file. Smallest fix: give a file, or pipe the text in and give '-'.")


def _shown(name: str) -> str:
    """A name that fits into one line."""
    printable = "".join(letter if letter.isprintable() else "?" for letter in name) or "''"
    return printable if len(printable) <= 120 else printable[:60] + "…" + printable[-50:]


def _decoded(name: str, content: bytes) -> tuple[str, str]:
    """Text and encoding; JobError where the bytes are no text."""
    encoding = next((encoding for mark, encoding in _MARKS if content.startswith(mark)), None) or _guessed(content)
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        # A log may hold a few bytes of another encoding; they say nothing about batches.
        text = content.decode("utf-8" if encoding == "utf-8-sig" else encoding, "replace")
        encoding = "unknown" if encoding == "utf-8" else encoding
    start = text[:65536]
    odd = len(_CONTROL.findall(start)) + start.count("\ufffd")
    if "\x00" in start or odd > 8 + len(start) // 10:
        raise JobError(
            f"{_shown(name)} is binary, no text. Smallest fix: give the config, command, script or log as text."
        )
    return text.replace("\x00", ""), encoding


def _guessed(content: bytes) -> str:
    """UTF-16 without a mark has a NUL in every other byte of plain English; all else is taken as UTF-8."""
    start = content[:4096]
    even, odd = start[::2].count(0), start[1::2].count(0)
    if odd > len(start) * 0.4 and not even:
        return "utf-16-le"
    return "utf-16-be" if even > len(start) * 0.4 and not odd else "utf-8"
