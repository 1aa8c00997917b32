"""The command line: ``dsaccum check``, ``explain``, ``compare``, ``verify`` and ``watch``.

Options are read by hand and each command loads what it needs when it is called: ``dsaccum check ds_config.json`` has
the time of a few imports. Whatever a person gives, the answer is a report or one line that says what is off.
"""

from __future__ import annotations

import os
import sys

from dsaccum_helpers.errors import DsaccumError

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COMMANDS", "REPORT_IT", "USAGE", "complain", "main", "say"]

COMMANDS = ("check", "explain", "compare", "verify", "watch")
REPORT_IT = "Please report it with what you gave; DSACCUM_DEBUG=1 shows where it happened."
USAGE = """\
dsaccum: do batch and accumulation settings of a DeepSpeed training agree?

  dsaccum check [PATH ...]   read configs, launch commands, scripts and logs of one job, and say how to mend them
  dsaccum explain [CODE]     what can be wrong, as a list, or one entry of it
  dsaccum compare CODE ...   train the right setting and mistakes side by side, and see what each does
  dsaccum verify             prove on this machine that accumulation is the full batch, with the versions there are
  dsaccum watch SCRIPT ...   run your own training script, and see where its accumulation is wrong

  dsaccum check --help       all options
  dsaccum --version          the version of dsaccum
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``dsaccum`` with these arguments, those of the command line by default; the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_streams()
    try:
        return _run(words)
    except DsaccumError as error:
        # One line, whatever a file name or a value of the person's holds.
        complain(str(error))
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Who reads us has left, as `head` does.
        _drop_output()
        return 141
    except MemoryError:
        complain("there is not enough memory for all of it. Smallest fix: give the last part of a log (tail -n 10000).")
        return 2
    except Exception as error:  # a person in trouble gets no traceback of ours
        if os.environ.get("DSACCUM_DEBUG"):
            raise
        complain(f"a fault of dsaccum itself ({type(error).__name__}: {error!s:.200}). {REPORT_IT}")
        return 2


def complain(text: str) -> None:
    """One line on standard error, whatever a file name or a value of the person's holds."""
    line = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in " ".join(text.split()))
    encoding = sys.stderr.encoding or "ascii"
    try:
        print("dsaccum:", line.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr)
    except OSError:  # nobody can be told; the exit status still says it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def say(text: str) -> None:
    """Print text, also where the terminal cannot show every character of it."""
    try:
        try:
            sys.stdout.write(text)
        except UnicodeEncodeError:
            encoding = sys.stdout.encoding
            sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_output()
        text = f"standard output cannot be written ({error.strerror or error}). Smallest fix: write to another place."
        raise DsaccumError(text) from None


def _open_streams() -> None:
    """Stand in for streams that whoever started us has closed: a file opened later would take their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for as long as we run


def _drop_output() -> None:
    """Python would complain once more when it closes standard output at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _run(words: list[str]) -> int:
    command, rest = (words[0], words[1:]) if words else (None, [])
    if command in COMMANDS:
        from importlib import import_module

        status: int = import_module(f"{__name__}.{command}").run(rest)
        return status
    if command in ("-h", "--help", "help"):
        say(USAGE)
        return 0
    if command in ("-V", "--version"):
        from dsaccum_helpers import __version__

        say(f"dsaccum {__version__}\n")
        return 0
    if command is None:
        sys.stderr.write(USAGE)
        return 2
    from dsaccum_helpers.commands.options import nearest
    from dsaccum_helpers.job import JobError

    advice = nearest(command, (*COMMANDS, "--help", "--version")) or "check"
    if os.path.exists(command):
        advice = f"check {command}"
    raise JobError(f"{command[:60] or repr(command)} is no command. Smallest fix: dsaccum {advice}.")
