"""``dsaccum verify``: the proof on this machine that accumulation is the full batch."""

from __future__ import annotations

import os
from contextlib import closing

from dsaccum_helpers.commands import say
from dsaccum_helpers.commands.terminal import LastLine, Parser
from dsaccum_helpers.job import JobError
from dsaccum_helpers.setting import TASKS

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["run"]

USAGE = """\
dsaccum verify [options]
dsaccum verify --config ds_config.json [--processes N]

Splits one train batch into micro-batches in several ways, trains each with real DeepSpeed at every ZeRO stage, and
compares the weights with those of plain PyTorch, which puts the whole batch through the model at once. Some of the
weights' distance is rounding: what it explains stands beside it. Ctrl-C ends all runs.

Each option takes one value or several, as in --stage 0,2:
  --stage N[,N...]               ZeRO stages (0,1,2,3)
  --dtype NAME[,NAME...]         fp32, bf16 (both)
  --optimizer NAME[,NAME...]     SGD, Adam (both)
  --processes N[,N...]           training processes (1,2)
  --accumulation-steps N[,N...]  into how many micro-batches the batch of a process is split (1,4,8)
and these take one:
  --train-batch-size N           samples per optimizer step (32)
  --task NAME                    {tasks} (digits)

With a config of your own, one setting is verified in place of all these: your batch numbers, optimizer, clipping,
scheduler, ZeRO stage and type, made small enough for this machine. The report says what was kept, scaled and left out.
  --config FILE                  a DeepSpeed config
  --processes N                  how many processes you start it with (from its numbers, where they say)

  --format FORMAT                text, json or html
  --output FILE                  write the report there; .json and .html choose the format

Exit status: 0 every setting ends at the weights of the full batch; 1 one does not, or the config does not agree with
itself; 2 an option is off, or the config holds what cannot be verified here.
"""


def run(words: list[str]) -> int:
    """``dsaccum verify``; the exit status. Raises ``DsaccumError`` before anything has been started."""
    options = vars(_parser().parse_args(words))
    if options.pop("help"):
        say(USAGE.format(tasks=", ".join(TASKS)))
        return 0
    form, output = _form(options.pop("format"), options["output"]), options.pop("output")
    wanted = {name: value for name, value in options.items() if value is not None}
    _refuse_beside_config(wanted)
    _refuse_place(output)
    from dsaccum_helpers import Runner, verify  # says what to install where the packages of the course are missing

    line = LastLine()

    def progress(over: int, runs: int) -> None:
        if line.due():
            line.show(f"{over} of {runs} runs")

    with closing(Runner()) as runner:
        verification = verify(**wanted, runner=runner, progress=progress)
    line.clear()
    text = _text(verification, form)
    if output is None:
        say(text)
    else:
        _write(output, text)
        say(f"{verification.summary} {output} says more.\n")
    return int(not verification.holds)


def _form(form: str | None, output: str | None) -> str:
    """The format that is asked for: by its name, by the name of the file, else text."""
    ending = str(output or "").lower().rpartition(".")[2]
    return form or {"json": "json", "html": "html", "htm": "html"}.get(ending, "text")


def _refuse_beside_config(wanted: dict[str, Any]) -> None:
    """A config says itself what the other options would say."""
    beside = [name for name in wanted if name not in ("config", "processes")]
    if "config" in wanted and beside:
        name = {option.dest: option.option_strings[0] for option in _parser()._actions}[beside[0]]
        raise JobError(f"{name} has no part beside --config, which says it. Smallest fix: leave {name} out.")


def _refuse_place(output: str | None) -> None:
    """Where no file can be written is better said before the runs than after them."""
    if output is not None and (os.path.isdir(output) or not os.path.isdir(os.path.dirname(os.path.abspath(output)))):
        reason = "it is a folder" if os.path.isdir(output) else "there is no such folder"
        raise JobError(f"{output:.200} cannot be written ({reason}). Smallest fix: --output verify.html.")


def _text(verification: Any, form: str) -> str:
    from dsaccum_helpers.commands.answer import as_json

    if form == "json":
        return as_json(verification.to_dict())
    if form == "html":
        from dsaccum_helpers.verification.page import as_page

        return as_page(verification)
    return f"{verification}\n"


def _write(output: str, text: str) -> None:
    try:
        with open(output, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        say(text)  # what was measured is not lost
        reason = error.strerror or error
        raise JobError(
            f"{output:.200} cannot be written ({reason}). Smallest fix: --output in another folder."
        ) from None


def _several(kind: type) -> Callable[[str], list[Any]]:
    """The reader of values with commas between them, each once."""

    def several(text: str) -> list[Any]:
        return list(dict.fromkeys(kind(part.strip()) for part in text.split(",")))

    several.__name__ = f"{kind.__name__} list"  # argparse puts it into its message
    return several


def _parser() -> Parser:
    parser = Parser(prog="dsaccum verify", add_help=False, allow_abbrev=False)
    parser.add_argument("--stage", dest="stages", type=_several(int))
    parser.add_argument("--dtype", dest="dtypes", type=_several(str))
    parser.add_argument("--optimizer", dest="optimizers", type=_several(str))
    parser.add_argument("--processes", type=_several(int))
    parser.add_argument("--accumulation-steps", dest="splits", type=_several(int))
    parser.add_argument("--train-batch-size", type=int)
    parser.add_argument("--task", choices=tuple(TASKS))
    parser.add_argument("--format", choices=("text", "json", "html"))
    parser.add_argument("--config")
    parser.add_argument("--output")
    parser.add_argument("-h", "--help", action="store_true")
    return parser
