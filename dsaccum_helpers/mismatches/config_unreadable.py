"""The config cannot be read by the program that will read it, or is not where that program looks."""

from __future__ import annotations

import re

from dsaccum_helpers.findings import Fix
from dsaccum_helpers.job import Source
from dsaccum_helpers.mismatches.entry import Mismatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Config, Event, Job
    from dsaccum_helpers.setting import Setting

#: Frameworks that read the file themselves, with Python's own JSON reader. The others leave it to DeepSpeed, whose
#: reader takes HJSON: comments, trailing commas and keys without quotes.
STRICT = {
    "transformers": "Transformers",
    "trl": "TRL",
    "accelerate": "Accelerate",
    "lightning": "Lightning",
}
_PLACE = re.compile(r"line (\d+),? col(?:umn)? (\d+)")


class ConfigUnreadable(Mismatch):
    """There is a config, but its reader stops, or finds none under the name that it is given."""

    code = "config-unreadable"
    title = "The config cannot be read"
    symptom = (
        'JSONDecodeError, HjsonDecodeError, "Duplicate keys in DeepSpeed config", or "Expected a string path to an '
        'existing deepspeed config".'
    )
    cause = (
        "DeepSpeed reads HJSON; Transformers, Accelerate and Lightning read strict JSON. A path counts from the folder "
        "in which the job starts."
    )
    consequence = "The job stops before training."
    remedy = "Write plain JSON, which every reader takes, and give the path from the folder in which the job starts."
    learn = "notebooks/01_three_numbers.ipynb"
    silences = ("auto-without-trainer", "accumulation-key-missing")
    rank = 0
    refused = True

    def check(self, job: Job) -> Iterable[Finding]:
        """What the readers said of the files, and what the log says."""
        found = [*self._files(job), *self._config(job, job.config)]
        yield from found
        for event in job.events:
            if event.kind == "config-path":
                yield self._path(job, event)
            elif event.kind in ("config-parse", "duplicate-keys") and not found:
                yield self._logged(event)

    def _files(self, job: Job) -> Iterator[Finding]:
        """Files that no reader takes."""
        for one in job.unreadable:
            place = f" (line {one.source.line}, column {one.source.column})" if one.source.line else ""
            yield self.found(f"{one.message}{place}.", [one.source], [Fix(f"{_sentence(one.remedy)}.")])

    def _config(self, job: Job, config: Config | None) -> Iterator[Finding]:
        """A file that one reader takes and the other does not."""
        if config is None or config.kind != "file":
            return
        reader = STRICT.get(job.framework)
        if reader is None and any("JSONDecodeError" in str(event.values.get("words")) for event in job.events):
            reader = "The program's JSON reader"
        said = config.strict if reader else config.hjson
        if said and not (config.duplicates and not reader):
            words, line, column = said
            other = "; DeepSpeed's own reader would take it" if reader and not config.hjson else ""
            text = f"{reader or 'DeepSpeed'} cannot read {config.file}: {words} (line {line}, column {column}){other}."
            yield self.found(text, [Source(config.file, line, column)], [Fix(_remedy(config, line, column))])
        elif config.duplicates:
            yield self._twice(config, reader)

    def _twice(self, config: Config, reader: str | None) -> Finding:
        """Keys that stand twice: DeepSpeed refuses them, the strict reader takes the last without a word."""
        names = {".".join(path): path for path, _, _ in config.duplicates}
        where = [Source(config.file, line, column, ".".join(path)) for path, line, column in config.duplicates]
        where += [config.source(*path) for path, _, _ in config.duplicates]
        named = " and ".join(f'"{name}"' for name in names)
        lines = ", ".join(dict.fromkeys(str(source.line) for source in where if source.line))
        text = f"{named} {'stands' if len(names) == 1 else 'stand'} twice in {config.file} (lines {lines}): "
        last = ", ".join(f"{name} {config.get(*path)!r:.40}" for name, path in names.items())
        if reader:
            text += f"{reader} takes the last one without a word ({last}), DeepSpeed itself refuses such a file."
        else:
            text += f"DeepSpeed refuses such a file; a strict JSON reader would take the last one ({last})."
        fix = Fix(f"Keep one {'line' if len(names) == 1 else 'line of each'} and delete the other.")
        consequence = "The other value is not used." if reader else None
        return self.found(text, where, [fix], severity="warning" if reader else "error", consequence=consequence)

    def _logged(self, event: Event) -> Finding:
        """The reader's own words, where the file is not given or can be read by now."""
        if event.kind == "duplicate-keys":
            keys = event.values.get("keys") or []
            named = ", ".join(map(str, keys)) if isinstance(keys, list | tuple) else str(keys)
            text = f"DeepSpeed refuses the config because keys stand twice: {named}."
            return self.found(text, [event.source], [Fix("Keep one line of each key and delete the other.")])
        words = str(event.values.get("words", ""))
        place = _PLACE.search(words)
        text = f"The config could not be read: {words.strip()[:200].rstrip('.')}."
        at = f"line {place[1]}, column {place[2]}" if place else "the place that the message names"
        hint = "a comma before a closing brace, a comment, single quotes, or True in place of true"
        return self.found(text, [event.source], [Fix(f"Look at {at}, most often {hint}.")])

    def _path(self, job: Job, event: Event) -> Finding:
        """ "Expected a string path to an existing deepspeed config": what was received instead."""
        received = str(event.values.get("received") or "").strip()
        if received.startswith(("{", "'{", '"{')):
            text = "The config's text was given where a path or a dict is wanted; DeepSpeed takes it for base64."
            fix = "Give the path of the file, or json.loads of the text."
        elif "Path(" in received:
            text = f"A pathlib object was given where a path in a string is wanted: {received:.200}."
            fix = "Give str(path)."
        elif received in ("", "None"):
            text, fix = "No config was given at all.", "Give the path of the config, or a dict."
        else:
            text, fix = self._missing(job, received)
        wanted = next((fact.source for fact in job.references if _name(str(fact.value)) == _name(received)), None)
        return self.found(text, [*filter(None, [wanted]), event.source], [Fix(fix)])

    def _missing(self, job: Job, received: str) -> tuple[str, str]:
        """A name under which no file is found."""
        text = (
            f"No file {received:.200} exists in the folder in which the job runs; the rest of the message, about a "
            "dictionary and base64, only lists what else a config may be."
        )
        known = [config.file for config in job.configs if config.file and config.kind == "file"]
        same = next((file for file in known if _name(file) == _name(received)), None)
        moved = next((found[1] for launch in job.launches if (found := re.search(r"\bcd\s+(\S+)", launch.text))), None)
        if moved:
            return text, f"The job starts in {moved}: give the path from there, or an absolute one."
        if same:
            return text, (
                f"Give the absolute path of {same}. If the path is right, it is a pathlib object: give str(path)."
            )
        return text, "Give the path from the folder in which the job starts, or an absolute one."

    def config(self, setting: Setting) -> str:
        """The text of a config that was cut off behind its numbers, in base64: DeepSpeed takes that for a path too."""
        import base64
        import json

        whole = json.dumps(setting.ds_config())
        return base64.urlsafe_b64encode(whole[: whole.index(', "optimizer"')].encode()).decode()


def _name(path: str) -> str:
    return path.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".")


def _remedy(config: Config, line: int, column: int) -> str:
    """The smallest change at the place where the strict reader stops."""
    text = config.text or ""
    start = sum(len(one) for one in text.splitlines(keepends=True)[: line - 1]) + column - 1
    rest, before = text[start:].lstrip(), text[:start].rstrip()
    if rest.startswith(("//", "#", "/*")):
        return f"Delete the comment on line {line}."
    if rest[:1] in ("}", "]") and before.endswith(","):
        return f"Delete the comma before the closing {'brace' if rest[0] == '}' else 'bracket'} on line {line}."
    if rest.startswith(",") and rest[1:].lstrip()[:1] in ("}", "]"):
        return f"Delete the comma at the end of line {line}."
    if rest.startswith("'"):
        return f"Write double quotes in place of single ones on line {line}."
    if rest.startswith(("True", "False", "None")):
        return f"Write true, false or null in place of True, False or None on line {line}."
    if text.startswith("\ufeff") or "BOM" in str(config.strict):
        return "Save the file as UTF-8 without a byte-order mark."
    if "expect UTF-8" in str(config.strict):
        return "Save the file as UTF-8."
    return f"Write line {line} as plain JSON, at column {column}."
