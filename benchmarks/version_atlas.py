"""Which release of DeepSpeed trains right in which setting: measured in throw-away environments, kept in the docs.

    python -m benchmarks.version_atlas --releases 0.16.9,0.17.6
    python -m benchmarks.version_atlas --latest 5
    python -m benchmarks.version_atlas                 every release since 0.17.0, the last ones of 0.14 to 0.16

Each release is built from its source package in a temporary folder, on top of the packages that run this script, and
measured there on the CPU (``version_probes``). What was measured is kept in ``build/version_atlas``, so that a second
call measures only what is missing; the tables of ``docs/releases.md`` are written from all of it. Ctrl-C leaves nothing
but what was complete.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from benchmarks.version_table import page, put

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "version_atlas"
EVERY_SINCE, LAST_SINCE = Version("0.17"), Version("0.14")
SECONDS = 600.0
WORDS = 300


def say(text: str) -> None:
    """Progress, apart from the result."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.version_atlas", description=__doc__.split("\n")[0])
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--releases", help="versions with commas between them")
    chosen.add_argument("--latest", type=int, help="the newest so many releases")
    parser.add_argument("--again", action="store_true", help="measure also what is kept from an earlier call")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for each release (default: 600)")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "releases.md", help="the document to write into")
    parser.add_argument("--kept", type=Path, default=KEPT, help="the folder for what was measured")
    return parser.parse_args()


def published() -> list[str]:
    """Every release that pip can find, the newest first. Raises ``SystemExit`` with pip's own words."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "deepspeed"], capture_output=True, text=True
    )
    found = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    if found is None:
        sys.exit(f"pip does not say which releases there are: {last_line(done.stderr)}")
    return found[1].split(", ")


def usual(releases: Sequence[str]) -> list[str]:
    """Every release from ``EVERY_SINCE`` on, and the last patch of each older minor from ``LAST_SINCE`` on."""
    chosen, minors = [], set()
    for version in sorted(map(Version, releases), reverse=True):
        minor = version.release[:2]
        if version >= EVERY_SINCE or (version >= LAST_SINCE and minor not in minors):
            chosen.append(str(version))
        minors.add(minor)
    return chosen


def last_line(text: str) -> str:
    """The last line that says something, shortened; pip's notices are passed over."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("[notice]")]
    return lines[-1][:WORDS] if lines else "no message"


def error_line(text: str) -> str:
    """The last line that names an error, or else the last one."""
    lines = [line.strip() for line in text.splitlines()]
    named = [line for line in lines if re.match(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*: |ERROR: ", line)]
    return named[-1][:WORDS] if named else last_line(text)


class Stopped(Exception):
    """Why a release could not be measured, in words."""


def surroundings() -> dict[str, str]:
    """The environment variables of everything that is started: the CPU, one thread, and nothing compiled."""
    own = {"DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return dict(os.environ) | own


def call(command: list[str], deadline: float, cwd: Path, take: Callable[[str], None]) -> None:
    """Hand over each line of a command's standard output. Raises ``Stopped``; leaves no process of it in any case."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=cwd,
            env=surroundings(),
            start_new_session=True,
        )
        assert process.stdout is not None
        # A timer, because a line may never come.
        before = signal.signal(signal.SIGALRM, _out_of_time)
        signal.setitimer(signal.ITIMER_REAL, max(0.1, deadline - time.monotonic()))
        try:
            for line in process.stdout:
                take(line)
            status = process.wait()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
        if status:
            errors.seek(0)
            raise Stopped(error_line(errors.read()))


def _out_of_time(*_: Any) -> None:
    raise Stopped("not done in the time given")


def environment(folder: Path) -> tuple[str, Path]:
    """A Python that sees this one's packages behind its own: (its path, the folder for its own)."""
    venv.create(folder, with_pip=False, symlinks=True)
    own = next(folder.glob("lib/python3*/site-packages"))
    base = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (own / "packages_behind.pth").write_text("".join(f"{path}\n" for path in base))
    return str(folder / "bin" / "python"), own


def measure(release: str, seconds: float) -> dict[str, Any]:
    """Install one release and measure it. What goes wrong stands in ``words``, beside partial results in ``stopped``.

    ``cpu`` is the processor time of the measuring alone, ``wall`` that of all.
    """
    began = time.monotonic()
    before = processor_seconds()
    found: dict[str, Any] = {"release": release, "rows": [], "probes": {}, "words": "", "stopped": "", "versions": {}}
    with tempfile.TemporaryDirectory(prefix="dsaccum-release-") as name:
        folder = Path(name)
        try:
            python, own = environment(folder / "env")
            install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
            install += ["--no-compile", "--target", str(own), f"deepspeed=={release}"]
            call(install, began + seconds, folder, lambda line: None)
            before = processor_seconds()
            probes = [python, "-P", "-m", "benchmarks.version_probes"]
            call(probes, began + seconds, folder, lambda line: take(found, line))
        except Stopped as why:
            found["stopped" if found["rows"] or found["probes"] else "words"] = str(why)
    found |= {"python": platform.python_version(), "date": time.strftime("%Y-%m-%d")}
    return found | {"wall": time.monotonic() - began, "cpu": processor_seconds() - before}


def take(found: dict[str, Any], line: str) -> None:
    """Take in one line of ``version_probes``; what is not ours (a library's own output) passes by."""
    try:
        event = json.loads(line)
    except ValueError:
        return
    if "machine" in event:
        found["versions"] = event["machine"]["versions"]
        if found["versions"]["deepspeed"].split("+")[0] != found["release"]:
            raise Stopped(f"{found['versions']['deepspeed']} was imported in its place")
    elif "rows" in event:
        found["rows"] += [row | {"holds": by_weights(row)} for row in event["rows"]]
    elif "probe" in event:
        found["probes"][event["probe"]] = {key: value for key, value in event.items() if key != "probe"}


def by_weights(row: dict[str, Any]) -> bool:
    """Does a row end at the weights of the full batch? ``verify`` looks at gradient norms too.

    It reads them where recent releases keep them: up to 0.17.5, bf16 at ZeRO-0 sums its gradients somewhere else.
    """
    return row["distance"] is not None and row["distance"] <= row["allowed"]


def processor_seconds() -> float:
    """Of everything that was started and has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def kept(folder: Path) -> dict[str, dict[str, Any]]:
    """What earlier calls measured, by release."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return {one["release"]: one for one in found}


def write(path: Path, measured: Sequence[dict[str, Any]]) -> None:
    """The tables into the document. Raises ``SystemExit`` where it has no place for them."""
    try:
        text = put(path.read_text(encoding="utf-8"), page(measured, "python -m benchmarks.version_atlas"))
    except (OSError, ValueError) as error:
        sys.exit(f"{path} cannot be written: {error}")
    path.write_text(text, encoding="utf-8")


def main() -> None:
    """Measure release by release; the document is written anew behind each."""
    chosen = options()
    if chosen.releases:
        wanted = [str(Version(word)) for word in chosen.releases.split(",")]
    else:
        wanted = published()[: chosen.latest] if chosen.latest else usual(published())
    chosen.kept.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM):  # a job in the background ignores the first
        signal.signal(number, signal.default_int_handler)
    known = kept(chosen.kept)
    if known:
        write(chosen.output, list(known.values()))
    for place, release in enumerate(wanted, 1):
        if release in known and not chosen.again:
            continue
        known[release] = one = measure(release, chosen.seconds)
        (chosen.kept / f"{release}.json").write_text(json.dumps(one, indent=1) + "\n")
        write(chosen.output, list(known.values()))
        rows = f"{sum(row['holds'] for row in one['rows'])} of {len(one['rows'])} settings right"
        cost = f"{one['wall']:.0f} s, processor {one['cpu']:.0f} s"
        say(f"{place}/{len(wanted)} {release}: {one['words'] or rows} ({cost})")
    print(chosen.output)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
