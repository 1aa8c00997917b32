"""``dsaccum watch``: a person's own training script under the live observer."""

from __future__ import annotations

from dsaccum_helpers.errors import DsaccumError

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

__all__ = ["run"]

USAGE = """\
dsaccum watch [options] SCRIPT [ARGUMENT ...]
dsaccum watch [options] -m MODULE [ARGUMENT ...]

Runs a training script, unchanged, and watches every DeepSpeed engine that it makes: the weights of the micro-batches
in each update, the gradient that reaches the optimizer, the parameters of the ranks, the loader and the learning rate.
Weights come out the same to the bit. What was seen is said at the end, on rank 0. Under a launcher:

  deepspeed --module dsaccum_helpers.commands watch train.py --epochs 3
  torchrun --nproc_per_node 2 -m dsaccum_helpers.commands watch train.py --epochs 3

  --set wanted.train_batch_size=N  the samples per optimizer step that are meant: then it is also seen that
                                   accumulation was never switched on
  --sample-every N                 measure the weights in the first updates and then in each N-th only (2)
  --processes N                    start N processes on this machine, 1 too, with what a launcher would tell them
  --json FILE                      write the report as JSON
  --quiet                          print no summary

Exit status: that of the script where it fails; 1 where an error or a warning was seen, 2 where an option is off, the
script is not there, or it made no engine; else 0.
"""
_VALUED = {"--set": "wanted.train_batch_size=64", "--sample-every": "8", "--processes": "2", "--json": "seen.json"}
_FACT = "wanted.train_batch_size"


class _Options:
    def __init__(self) -> None:
        self.wanted: int | None = None
        self.every = 2
        self.processes: int | None = None  # None: this process alone, with what a launcher may have told it
        self.json: str | None = None
        self.quiet = self.help = self.module = False
        self.words: list[str] = []


def run(words: list[str]) -> int:
    """``dsaccum watch``; the exit status. What the script raises passes through."""
    options = _parse(words)
    if options.help:
        from dsaccum_helpers.commands import say

        say(USAGE)
        return 0
    if not options.words:
        raise DsaccumError("watch needs a script. Smallest fix: dsaccum watch train.py.")
    if options.processes is not None:
        from dsaccum_helpers.commands.several import start

        return start(options.processes, _without_processes(words))
    from dsaccum_helpers.observer.script import run_script

    return run_script(
        options.words,
        module=options.module,
        json_file=options.json,
        quiet=options.quiet,
        wanted_train_batch_size=options.wanted,
        sample_every=options.every,
    )


def _parse(words: list[str]) -> _Options:
    """Our options stand before the script; all that follows is the script's."""
    options, rest = _Options(), list(words)
    while rest and rest[0].startswith("-"):
        name, given, value = rest.pop(0).partition("=")
        if name == "--" and not given:
            break
        if name in ("-h", "--help"):
            options.help = True
        elif name == "--quiet":
            options.quiet = True
        elif name == "-m":
            options.module = True
            break
        elif name in _VALUED:
            if not given and not rest:
                raise DsaccumError(f"{name} needs a value. Smallest fix: {name} {_VALUED[name]}.")
            _take(options, name, value if given else rest.pop(0))
        else:
            from dsaccum_helpers.commands.options import nearest

            near = nearest(name, (*_VALUED, "--quiet", "--help")) or "dsaccum watch --help lists them"
            raise DsaccumError(f"{name:.60} is no option. Smallest fix: {near}.")
    options.words = rest
    return options


def _take(options: _Options, name: str, value: str) -> None:
    if name == "--json":
        options.json = value
        return
    if name == "--set":
        fact, _, value = value.partition("=")
        if fact != _FACT:
            raise DsaccumError(f"--set {fact:.60}: watch takes one fact. Smallest fix: --set {_VALUED['--set']}.")
    if not (value.isascii() and value.isdigit() and len(value) < 19 and int(value) >= 1):
        raise DsaccumError(f"{name} {value:.60} is no positive integer. Smallest fix: {name} {_VALUED[name]}.")
    attribute = {"--set": "wanted", "--sample-every": "every", "--processes": "processes"}[name]
    setattr(options, attribute, int(value))


def _without_processes(words: list[str]) -> list[Any]:
    """The same words for each process."""
    kept, rest = [], list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "--"):
        word = rest.pop(0)
        name, given, _ = word.partition("=")
        value = [rest.pop(0)] if name in _VALUED and not given else []
        kept += [] if name == "--processes" else [word, *value]
    return [*kept, *rest]
