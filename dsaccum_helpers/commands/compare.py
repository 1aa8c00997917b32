"""``dsaccum compare``: the right run and mistakes of the catalogue side by side, trained with real DeepSpeed."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing

from dsaccum_helpers.commands.terminal import LastLine, Parser
from dsaccum_helpers.job import JobError
from dsaccum_helpers.mismatches import MATCHED, RUNNABLE, runnable
from dsaccum_helpers.setting import DTYPES, OPTIMIZERS, SCHEDULES, TASKS, ZERO_STAGES, Setting

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.training import Comparison, Point, Runner, RunResult

__all__ = ["every", "run"]

USAGE = """\
dsaccum compare CODE [CODE ...] [options]
dsaccum compare --all [options]

Trains the right setting and mistakes side by side, with real DeepSpeed on the GPUs there are, or on the CPU.
Prints what was predicted beside what was measured, and writes a folder: curves.png, curves.svg, points.csv,
comparison.json and ds_config.json. Ctrl-C ends all runs. More than five mistakes have a small picture each.

A CODE is one of these entries of `dsaccum explain`:
{codes}

  --all                     all of them that this setting can show
  --task NAME               {tasks}; {task} unless given
  --micro-batch N           samples per micro-batch ({train_micro_batch_size_per_gpu})
  --accumulation-steps N    micro-batches per optimizer step ({gradient_accumulation_steps})
  --processes N             training processes ({processes})
  --stage N                 ZeRO stage, {stages} ({zero_stage})
  --dtype NAME              {dtypes} ({dtype})
  --optimizer NAME          {optimizers} ({optimizer})
  --schedule NAME           {schedules} ({schedule})
  --learning-rate X         the task's own unless given
  --clipping X              norm to which gradients are clipped, 0 for none ({gradient_clipping:g})
  --steps N                 optimizer steps ({optimizer_steps})
  --seed N                  of the weights and of the order of samples ({seed})
  --mended                  train each mistake once more, put right
  --watch                   look on with the live observer, and say what it sees
  --oracle                  train the full batch with plain PyTorch beside them
  --output FOLDER           where the files go; a new folder dsaccum-export-1, -2, ... unless given
  --format FORMAT           text or json, of what is printed

Exit status: 0 every measured value is within 1 % of its prediction, 1 one is not or a run failed, 2 an option is off.
"""
#: Option to (field of Setting, type).
OPTIONS: dict[str, tuple[str, type]] = {
    "--task": ("task", str),
    "--micro-batch": ("train_micro_batch_size_per_gpu", int),
    "--accumulation-steps": ("gradient_accumulation_steps", int),
    "--processes": ("processes", int),
    "--stage": ("zero_stage", int),
    "--dtype": ("dtype", str),
    "--optimizer": ("optimizer", str),
    "--schedule": ("schedule", str),
    "--learning-rate": ("learning_rate", float),
    "--clipping": ("gradient_clipping", float),
    "--steps": ("optimizer_steps", int),
    "--seed": ("seed", int),
}


def run(words: list[str]) -> int:
    """``dsaccum compare``; the exit status. Raises ``DsaccumError`` before anything has been started."""
    options = _parser().parse_args(words)
    from dsaccum_helpers.commands.answer import as_json, say

    if options.help:
        say(_usage())
        return 0
    setting = Setting(**{name: value for name, _ in OPTIONS.values() if (value := getattr(options, name)) is not None})
    if not (options.codes or options.all):
        raise JobError(f"dsaccum compare needs a code. Smallest fix: dsaccum compare {next(iter(RUNNABLE))}.")
    codes = every(setting) if options.all else list(dict.fromkeys(options.codes))
    for code in codes:
        runnable(code, setting)  # all of them, before the first is trained
    from dsaccum_helpers import Runner  # says what to install where the packages of the course are missing
    from dsaccum_helpers.exports import as_dict, export, refuse_foreign

    if options.output is not None:
        refuse_foreign(options.output)
    with closing(Runner()) as runner:
        wishes = {"mended": options.mended, "watch": options.watch}
        comparison = _train(codes, setting, runner, oracle=options.oracle, **wishes)
        machine = runner.machine
    say(as_json(as_dict(comparison, machine)) if options.format == "json" else f"{comparison}\n")
    folder = export(comparison, options.output, machine)  # last: what was measured is printed even on a full disk
    print(f"Written to {folder}", file=sys.stderr)
    return int(not _holds(comparison))


def every(setting: Setting) -> list[str]:
    """Every code that this setting can show; why not, for the others, on standard error."""
    reasons = {code: entry.needs(setting) for code, entry in RUNNABLE.items()}
    for code, reason in reasons.items():
        if reason:
            print(f"{code} is left out: {reason}", file=sys.stderr)
    return [code for code, reason in reasons.items() if not reason]


def _train(codes: list[str], setting: Setting, runner: Runner, *, oracle: bool, **wishes: bool) -> Comparison:
    """One comparison of them all; they are trained a press after the other."""
    from dsaccum_helpers.training.comparison import MOST_MISMATCHES, Comparison, compare
    from dsaccum_helpers.training.events import ORACLE

    presses = [codes[first : first + MOST_MISMATCHES] for first in range(0, len(codes), MOST_MISMATCHES)] or [[]]
    results: list[RunResult] = []
    for place, press in enumerate(presses):
        progress = _Progress(f"{place + 1} of {len(presses)}: " if len(presses) > 1 else "")
        first = oracle and place == 0
        done = compare(*press, setting=setting, runner=runner, progress=progress, oracle=first, **wishes)
        progress.line.clear()
        results += [result for result in done.results if place == 0 or result.code not in (ORACLE, MATCHED.code)]
    return Comparison(setting, results)


def _holds(comparison: Comparison) -> bool:
    """Did every run end as it should, and does every measured value agree with its prediction?"""
    ended = all(result.ended in ("finished", "refused") for result in comparison.results)
    return ended and all(row.agrees is not False for row in comparison.rows())


class _Progress:
    """How far the runs are, on a terminal's last line; nothing elsewhere."""

    def __init__(self, title: str) -> None:
        self.title, self.began, self.line = title, time.monotonic(), LastLine()

    def __call__(self, comparison: Comparison, point: Point | None) -> None:
        if self.line.due():
            from dsaccum_helpers.plots import progress_text

            self.line.show(self.title + progress_text(comparison, self.began))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="dsaccum compare", add_help=False, allow_abbrev=False)
    parser.add_argument("codes", nargs="*")
    for option, (name, kind) in OPTIONS.items():
        parser.add_argument(option, dest=name, type=kind)
    parser.add_argument("--all", action="store_true")
    for option in ("--mended", "--watch", "--oracle"):
        parser.add_argument(option, action="store_true")
    parser.add_argument("--output")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("-h", "--help", action="store_true")
    return parser


def _usage() -> str:
    defaults: dict[str, Any] = Setting().to_dict()
    return USAGE.format(
        codes="\n".join(f"  {code:<36}{entry.title}" for code, entry in RUNNABLE.items()),
        tasks=", ".join(TASKS),
        stages=", ".join(map(str, ZERO_STAGES)),
        dtypes=" or ".join(DTYPES),
        optimizers=" or ".join(OPTIMIZERS),
        schedules=" or ".join(SCHEDULES),
        **defaults,
    )
