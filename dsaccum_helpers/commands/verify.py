"""``dsaccum verify``: the proof on this machine that accumulation is the full batch."""

from __future__ import annotations

from contextlib import closing

from dsaccum_helpers.commands.terminal import LastLine, Parser
from dsaccum_helpers.setting import TASKS

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["run"]

USAGE = """\
dsaccum verify [options]

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
  --format FORMAT                text or json

Exit status: 0 every setting ends at the weights of the full batch, 1 one does not, 2 an option is off.
"""


def run(words: list[str]) -> int:
    """``dsaccum verify``; the exit status. Raises ``DsaccumError`` before anything has been started."""
    options = vars(_parser().parse_args(words))
    from dsaccum_helpers.commands.answer import as_json, say

    if options.pop("help"):
        say(USAGE.format(tasks=", ".join(TASKS)))
        return 0
    form = options.pop("format")
    from dsaccum_helpers import Runner, verify  # says what to install where the packages of the course are missing

    line = LastLine()

    def progress(over: int, runs: int) -> None:
        if line.due():
            line.show(f"{over} of {runs} runs")

    wanted = {name: value for name, value in options.items() if value is not None}
    with closing(Runner()) as runner:
        verification = verify(**wanted, runner=runner, progress=progress)
    line.clear()
    say(as_json(verification.to_dict()) if form == "json" else f"{verification}\n")
    return int(not verification.holds)


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
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("-h", "--help", action="store_true")
    return parser
