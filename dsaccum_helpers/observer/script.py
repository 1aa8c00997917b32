"""A person's own training script under watch, unchanged: each engine that deepspeed.initialize makes is watched.

``deepspeed.initialize`` is wrapped when the script imports DeepSpeed; an engine that takes the place of another one
(resumed, or a second model) gets a watch of its own.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from dsaccum_helpers.errors import DsaccumError
from dsaccum_helpers.findings import Report

__all__ = ["ScriptWatch", "run_script"]


class ScriptWatch(importlib.abc.MetaPathFinder):
    """Watches all engines of this process; ``options`` are those of ``watch``."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.watches: list[Any] = []
        self.module: Any = None
        self.original: Any = None

    def start(self) -> None:
        """From now on: also where DeepSpeed is imported already."""
        if "deepspeed" in sys.modules:
            self._wrap(sys.modules["deepspeed"])
        else:
            sys.meta_path.insert(0, self)

    def stop(self, *, failed: bool) -> None:
        """Take everything out again."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if self.module is not None and getattr(self.module.initialize, "__wrapped__", None) is self.original:
            self.module.initialize = self.original
        for one in self.watches:
            one.stop(failed=failed)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The finder's own part of an import: DeepSpeed's loader is told to hand the module over when it is ready."""
        if name != "deepspeed":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            self._wrap(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _wrap(self, module: Any) -> None:
        self.module, self.original = module, module.initialize

        def initialize(*words: Any, **options: Any) -> Any:
            made = self.original(*words, **options)
            if hasattr(made[0], "_take_model_step") and made[0].optimizer is not None:
                self._watch(made[0], made[2])
            return made

        initialize.__wrapped__ = self.original  # type: ignore[attr-defined]
        module.initialize = initialize

    def _watch(self, engine: Any, loader: Any) -> None:
        from dsaccum_helpers.observer.session import watch

        self.watches.append(watch(engine, loader, quiet=True, **self.options).start())

    def report(self) -> Report:
        """One report over all engines: each code once for each engine that shows it."""
        reports = [one.report() for one in self.watches]
        findings = [finding for report in reports for finding in report.findings]
        order = ("error", "warning", "note")
        findings.sort(key=lambda one: (one.because_of is not None, order.index(one.severity)))
        missing = list(dict.fromkeys(sentence for report in reports for sentence in report.missing))
        trained = [report for report in reports if not report.missing] or reports
        batch, sources = (trained[-1].batch, trained[-1].sources) if trained else ({}, {})
        return Report(findings, batch, sources, missing if trained == reports and missing else [])

    @property
    def optimizer_steps(self) -> int:
        """How many were seen, over all engines."""
        return sum(one.probe.updates for one in self.watches)


def run_script(words: Sequence[str], *, module: bool, json_file: str | None, quiet: bool, **options: Any) -> int:
    """Run ``words[0]`` with the rest as its arguments, and say what was seen; the exit status.

    What the script raises is shown as Python shows it, and its own exit status is kept. Raises ``DsaccumError`` where
    it is not there, DeepSpeed is not installed, or no engine was made.
    """
    if importlib.util.find_spec("deepspeed") is None:
        raise DsaccumError('watch needs deepspeed, which is not installed. Smallest fix: pip install "deepspeed".')
    _check(words[0], module)
    json_file = None if json_file is None else _report_file(json_file)
    watching = ScriptWatch(**options)
    kept, streams, process = (sys.argv, list(sys.path)), (sys.stdout, sys.stderr), os.getpid()
    sys.argv = list(words)
    sys.path[0:0] = [os.getcwd() if module else os.path.dirname(os.path.abspath(words[0]))]
    watching.start()
    status = 1
    try:
        status = _run(words[0], module)
    finally:
        sys.argv, sys.path[:] = kept
        watching.stop(failed=status != 0)
        if watching.watches and os.getpid() == process:  # a child that the script has forked ends here as well
            _own_streams(*streams)
            _tell(watching, json_file, quiet)
    if os.getpid() != process:
        return status
    if status == 0 and not watching.watches:
        raise DsaccumError(
            f"{words[0]} has ended and made no DeepSpeed engine. Smallest fix: give the script that calls "
            "deepspeed.initialize, with the arguments that make it train."
        )
    return status or int(watching.report().verdict == "mismatch")


def _run(name: str, module: bool) -> int:
    """The script as ``python`` would run it; its exit status."""
    try:
        if module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return 1
    except (Exception, KeyboardInterrupt) as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _check(name: str, module: bool) -> None:
    if module:
        sys.path.insert(0, os.getcwd())
        try:
            known = importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            known = False
        finally:
            sys.path.pop(0)
        if not known:
            raise DsaccumError(f"There is no module {name:.60}. Smallest fix: dsaccum watch FILE.py.")
    elif os.path.isdir(name):
        raise DsaccumError(f"{name:.200} is a folder, and watch runs a script. Smallest fix: name the .py file.")
    elif not os.path.isfile(name):
        raise DsaccumError(f"There is no script {name:.200}. Smallest fix: give the path of a .py file.")


def _report_file(name: str) -> str:
    """The full path, as of now: the script may go to another folder. Raises ``DsaccumError`` where no file can be."""
    path = os.path.abspath(name)
    if not os.path.isdir(os.path.dirname(path)):
        raise DsaccumError(f"--json {name:.200}: there is no such folder. Smallest fix: --json seen.json.")
    if not name or os.path.isdir(path):
        raise DsaccumError(f"--json {name or repr(name):.200} names no file. Smallest fix: --json seen.json.")
    return path


def _own_streams(stdout: Any, stderr: Any) -> None:
    """Back to the streams of before: the script may have put others in their place, or closed them."""
    for name, number, stream in (("stdout", 1, stdout), ("stderr", 2, stderr)):
        # Python leaves the terminal's number open where its stream is closed.
        again = open(number, "w", errors="backslashreplace", closefd=False) if stream.closed else stream  # noqa: SIM115
        setattr(sys, name, again)


def _tell(watching: ScriptWatch, json_file: str | None, quiet: bool) -> None:
    """The summary, once, on rank 0."""
    if int(os.environ.get("RANK", "0")):
        return
    report, steps = watching.report(), watching.optimizer_steps
    if not quiet and watching.watches:
        engines = f"{len(watching.watches)} engine{'s' * (len(watching.watches) != 1)}"
        print(f"dsaccum watch: {engines}, {steps} optimizer steps. {report}", file=sys.stderr, flush=True)
    if json_file is not None:
        from dsaccum_helpers.observer.session import write_report

        write_report(report, steps, json_file)
