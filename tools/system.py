"""What the set-up asks of the machine: disk space, a port, system packages, a browser.

Each answers, or ends with one sentence that names the cause and the remedy. Only the standard library is used.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

CHROMIUM_NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
GB = 1000**3


def say(line: str) -> None:
    """Tell the person what happens, on standard error so that answers on standard output stay clean."""
    print(line, file=sys.stderr, flush=True)


def run_quietly(command: list[str | Path]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and keep what it printed, both streams together."""
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL
    )


def require_space(folder: Path, gigabytes: float) -> None:
    """End with one sentence where the disk has too little room. DSACCUM_SPACE_NEEDED (in GB) overrides the need."""
    needed = float(os.environ.get("DSACCUM_SPACE_NEEDED", gigabytes))
    free = shutil.disk_usage(folder).free / GB
    if free < needed:
        raise SystemExit(
            f"The disk is too full: {needed:g} GB are needed in {folder}, {free:.1f} GB are free; "
            "make room, then try again."
        )


def no_space(output: str, folder: Path) -> str | None:
    """The sentence for a disk that became full while a command ran; None where nothing speaks for that."""
    said = re.search(r"No space left on device|Disk quota exceeded|Errno (28|122)\b", output)
    if not said and shutil.disk_usage(folder).free > 0.02 * GB:
        return None
    temporary = Path(tempfile.gettempdir())
    places = ", ".join(f"{shutil.disk_usage(place).free / GB:.1f} GB in {place}" for place in (folder, temporary))
    return f"The disk became full while installing (free now: {places}); make room, or set TMPDIR to a roomier folder."


def require_port(text: str) -> None:
    """End with one sentence where the port that was asked for is none, or something else listens on it."""
    if not (text.isdecimal() and 0 < int(text) < 65536):
        raise SystemExit(f"PORT={text} is not a port: give a number from 1 to 65535, or leave PORT out.")
    port = int(text)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except PermissionError:
            raise SystemExit(f"Port {port} is reserved for the administrator: choose one above 1023.") from None
        except OSError:
            remedy = "stop what uses it, choose another (make lab PORT=...), or leave PORT out to get a free one"
            raise SystemExit(f"Port {port} is taken: {remedy}.") from None


def apt_install(package: str) -> bool:
    """Install a Debian package where that is possible without asking for a password; say whether it worked."""
    if shutil.which("apt-get") is None:
        return False
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if sudo and (shutil.which("sudo") is None or run_quietly([*sudo, "true"]).returncode):
        return False
    say(f"Installing the system package {package} ...")
    apt = [*sudo, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    run_quietly([*apt, "update"])
    return run_quietly([*apt, "install", "-y", "--no-install-recommends", package]).returncode == 0


def runs(browser: str) -> bool:
    """Whether this is a browser that starts, rather than a stub that only tells how to install one."""
    path = shutil.which(browser)
    return path is not None and run_quietly([path, "--version"]).returncode == 0


def find_chromium() -> str | None:
    """The first Chromium or Chrome on this machine that runs."""
    return next((shutil.which(name) for name in CHROMIUM_NAMES if runs(name)), None)


def chromium() -> None:
    """Print the path of a Chromium that runs, installing one where that is possible."""
    named = os.environ.get("DSACCUM_CHROMIUM")
    if named:
        if not runs(named):
            raise SystemExit(
                f"DSACCUM_CHROMIUM={named} does not run: name a Chromium or Chrome that does, or unset it."
            )
        print(named)
        return
    path = find_chromium() or (find_chromium() if apt_install("chromium") else None)
    if path is None:
        raise SystemExit(
            "The browser tests need Chromium: install it, or name one that runs with DSACCUM_CHROMIUM=/path/to/it."
        )
    print(path)
