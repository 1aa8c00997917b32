"""What a log sums up: the block before training, the first losses, versions, arguments (pure)."""

from __future__ import annotations

import re

from dsaccum_helpers.readers.log_patterns import number

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.readers.log import Events

_BLOCK = (
    ("micro", r"Instantaneous batch size per (?:device|GPU)\s*=\s*([\d,]+)"),
    ("train", r"Total train batch size[^=\n]{0,80}=\s*([\d,]+)"),
    ("steps", r"Gradient Accumulation steps\s*=\s*([\d,]+)"),
    ("optimization_steps", r"Total optimization steps\s*=\s*([\d,]+)"),
)
_PACKAGES = "deepspeed|transformers|accelerate|trl|lightning|pytorch-lightning|torch|peft|openrlhf|llamafactory"
_VERSION = r"(\d+\.\d+[\w.+-]*)"
_VERSIONS = (
    ("DeepSpeed info:", rf"DeepSpeed info:\s*version\s*=\s*{_VERSION}", "deepspeed"),
    ("deepspeed info ...", rf"deepspeed info\s*\.+\s*{_VERSION}", "deepspeed"),
    ("DeepSpeed version", rf"DeepSpeed version\s*[:=]?\s*v?{_VERSION}", "deepspeed"),
    ("deepspeed version", rf"deepspeed version\s*[:=]?\s*v?{_VERSION}", "deepspeed"),
    ("torch version ...", rf"torch version\s*\.+\s*{_VERSION}", "torch"),
    ("ransformers` version", rf"transformers`? version\s*:\s*{_VERSION}", "transformers"),
    ("ccelerate` version", rf"Accelerate`? version\s*:\s*{_VERSION}", "accelerate"),
    ("ransformers version", rf"[Tt]ransformers version\s*[:=]?\s*v?{_VERSION}", "transformers"),
    ("ccelerate version", rf"[Aa]ccelerate version\s*[:=]?\s*v?{_VERSION}", "accelerate"),
)
_PINNED = re.compile(rf"(?<![\w-])({_PACKAGES})==\s*{_VERSION}", re.IGNORECASE)
_LISTED = re.compile(
    rf"^(?:- |> )?({_PACKAGES})[ \t]*[ \t:][ \t]*v?{_VERSION}[ \t\r]*(?:$|pypi|py\d)", re.MULTILINE | re.IGNORECASE
)
_INSTALLED = re.compile(rf"(?<=[ ])({_PACKAGES})-{_VERSION}(?=\s|$)", re.IGNORECASE)
_ARGUMENT = re.compile(r"(?:^|[\s(,])([a-z_]\w{1,60})=([^,\n]{0,200})(?:,|\n|\)|$)")
_ARGUMENTS = frozenset(
    [
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "deepspeed",
        "max_grad_norm",
        "learning_rate",
        "num_train_epochs",
        "max_steps",
        "warmup_steps",
        "bf16",
        "fp16",
        "num_generations",
    ]
)


def read(events: Events) -> None:
    """training-summary and losses events; the versions and the arguments that are printed."""
    _summary(events)
    _losses(events)
    _versions(events)
    _arguments(events)


def _summary(events: Events) -> None:
    """``***** Running training *****`` and the numbers under it; one with other numbers is another event."""
    for at in events.log.hits("* Running training *", 20):
        hit = events.log.line(at)
        lines = [hit, *events.log.after(hit, 16, 6000)]
        text = "\n".join(line.body for line in lines)
        values: dict[str, Any] = {}
        for name, pattern in _BLOCK:
            match = re.search(pattern, text)
            values[name] = number(match[1]) if match else None
        if not values["micro"] and not values["train"]:
            continue
        if events.add("training-summary", values, at):
            # A script with a loop of its own prints the block too, but neither file names nor this line.
            words = events.log.text[hit.start : lines[-1].end]
            of_trainer = "trainer.py" in words or "Number of trainable parameters" in words
            _numbers(events, values, at, of_trainer)


def _numbers(events: Events, values: dict[str, Any], at: int, of_trainer: bool) -> None:
    """The processes that the numbers make; the arguments, where it is Transformers' own Trainer that wrote them."""
    job, source = events.job, events.source(at)
    micro, train, steps = values["micro"], values["train"], values["steps"]
    if of_trainer:
        job.speak("transformers", source)
        if isinstance(micro, int):
            job.add("trainer.per_device_train_batch_size", micro, source)
        if isinstance(steps, int):
            job.add("trainer.gradient_accumulation_steps", steps, source)
    if all(isinstance(value, int) and value for value in (micro, train, steps)) and train % (micro * steps) == 0:
        processes = train // (micro * steps)
        if of_trainer and not job.all("processes"):
            job.add("processes", processes, source)
        events.add("started", {"processes": processes, "how": "the Trainer's batch sizes"}, at)


def _losses(events: Events) -> None:
    """The first training loss and the first evaluation loss that were logged."""
    text, found, places = events.log.text, {}, []
    value = r"['\"]?\s*[:=]\s*['\"]?(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"
    for name, words, pattern in (
        ("train", ("'loss':", '"loss":'), r"['\"]loss" + value),
        ("eval", ("eval_loss",), r"eval_loss\s*" + value),
    ):
        for at in sorted(at for word in words if (at := text.find(word)) >= 0):
            if match := re.compile(pattern).match(text, at):
                found[name] = float(match[1])
                places.append(at)
                break
    if found:
        events.add("losses", {"train": None, "eval": None, **found}, min(places))


def _versions(events: Events) -> None:
    """Versions that somebody prints, never those in the path of a file."""
    text, have = events.log.text, events.job.have
    for word, pattern, package in _VERSIONS:
        for at in events.log.hits(word, 1):
            if match := re.search(pattern, events.log.window(at, 0, 1).text):
                have(package, match[1].rstrip(".,"), events.source(at))
    for word, regex in (("==", _PINNED), ("Successfully installed", _INSTALLED)):
        for at in events.log.hits(word, 200):
            start = max(0, at - 24) if word == "==" else at
            end = at + 40 if word == "==" else events.log.line(at).end
            for match in regex.finditer(text, start, end):
                have(match[1], match[2].rstrip(".,"), events.source(match.start()))
    for match in _LISTED.finditer(text):
        have(match[1], match[2].rstrip(".,"), events.source(match.start()))


def _arguments(events: Events) -> None:
    """``TrainingArguments(per_device_train_batch_size=4, ...)`` as the example scripts print them."""
    at = events.log.text.find("TrainingArguments(")
    if at < 0:
        return
    hit = events.log.line(at)
    text = "\n".join(line.body for line in (hit, *events.log.after(hit, 250, 20_000)))
    given = {name: number(value) for name, value in _ARGUMENT.findall(text) if name in _ARGUMENTS}
    given = {name: value for name, value in given.items() if value is not None}
    if {"per_device_train_batch_size", "gradient_accumulation_steps"} <= given.keys():
        from dsaccum_helpers.readers.arguments import put

        source = events.source(at)
        put(given, events.job, lambda name: source._replace(key=name))
        events.job.speak("transformers", source)
