"""One watch over one engine: from the first hook to the report."""

from __future__ import annotations

import contextlib
import json as json_text
import os
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from dsaccum_helpers.errors import DsaccumError
from dsaccum_helpers.findings import SEVERITIES, Finding, Report
from dsaccum_helpers.observer.causes import Case, main_cause
from dsaccum_helpers.observer.facts import Facts, Seen, elsewhere, marked, seen
from dsaccum_helpers.observer.gradients import GradientSum
from dsaccum_helpers.observer.loaders import Feed
from dsaccum_helpers.observer.pipeline import PipelineProbe
from dsaccum_helpers.observer.places import Place, shown
from dsaccum_helpers.observer.probe import Probe
from dsaccum_helpers.observer.scale import Share
from dsaccum_helpers.observer.sides import Schedule, Sizes, Wanted, at_start, beside
from dsaccum_helpers.observer.window import Closed, Window


def watch(
    engine: Any,
    loader: Any = None,
    *,
    wanted_train_batch_size: int | None = None,
    sample_every: int = 2,
    json: Any = None,
    quiet: bool = False,
) -> Watch:
    """Observe a live DeepSpeed engine; use as a context manager, or ``start`` and ``stop`` what it returns.

    On several processes every rank must watch, with the same ``sample_every``: what is seen is exchanged at updates.

    ``loader``: what the training loop iterates over, to see what is left at its end; a DataLoader is seen without.
    ``wanted_train_batch_size``: samples per optimizer step that are meant; then it is also seen that accumulation was
    never switched on. ``sample_every``: the losses' weights are measured in the first three updates and in each n-th;
    the gradient, which costs a copy of it for as long, in the first three and in each (16 × n)-th. Calls are counted
    always. ``json``: a file for the report, written by rank 0. ``quiet``: print no summary.
    Raises ``DsaccumError`` for what is no DeepSpeed engine.
    """
    return Watch(
        engine,
        loader,
        wanted_train_batch_size=wanted_train_batch_size,
        sample_every=sample_every,
        json=json,
        quiet=quiet,
    )


class Watch:
    """What is seen of one engine between ``start`` and ``stop``. ``findings``: what is wrong, most important first."""

    def __init__(
        self,
        engine: Any,
        loader: Any = None,
        *,
        wanted_train_batch_size: int | None = None,
        sample_every: int = 2,
        json: Any = None,
        quiet: bool = False,
    ) -> None:
        if (
            isinstance(engine, type)
            or not hasattr(engine, "gradient_accumulation_steps")
            or not hasattr(engine, "_take_model_step")
        ):
            raise DsaccumError(
                f"watch was given a {type(engine).__name__}, which is no DeepSpeed engine. Smallest fix: "
                "watch(engine), with what deepspeed.initialize returned first."
            )
        numbers = {"sample_every": sample_every, "wanted_train_batch_size": wanted_train_batch_size}
        if wanted_train_batch_size is None:
            del numbers["wanted_train_batch_size"]
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise DsaccumError(f"{name} is {value!r:.40}, no positive integer. Smallest fix: {name}=16.")
        if not (json is None or isinstance(json, str | os.PathLike) or hasattr(json, "write")):
            raise DsaccumError(f"json is {json!r:.40}, no name of a file. Smallest fix: json='seen.json'.")
        self.engine, self.loader, self.json, self.quiet = engine, loader, json, quiet
        kind = PipelineProbe if hasattr(engine, "train_batch") and hasattr(engine, "_next_batch") else Probe
        self.probe = kind(engine, sample_every, self._closed, self._event, self._resumed)
        self.facts = Facts(engine, self.probe.world)
        self.feed = Feed(self.probe, loader, self._epoch_ended)
        self.sizes, self.wanted, self.schedule = Sizes(), Wanted(wanted_train_batch_size), Schedule()
        self.share = Share()
        self.found: list[Seen] = []
        self.running = self.told = False

    @property
    def findings(self) -> list[Finding]:
        """What was found so far, most important first."""
        return [*sorted(self.found, key=lambda one: (one.because_of is not None, SEVERITIES.index(one.severity)))]

    def start(self) -> Watch:
        """Hang the hooks in; nothing happens where they hang already. Raises ``DsaccumError`` after ``stop``."""
        if self.engine is None:
            raise DsaccumError("This watch has ended, and let its engine go. Smallest fix: watch(engine) once more.")
        if not self.running:
            self.running = True
            self._add(*at_start(self.facts))
            self.probe.start()
            self.probe.hooks.wrap(self.engine, "destroy", self._destroyed)
            self.feed.start()
        return self

    def stop(self, *, failed: bool = False) -> None:
        """Take the hooks out, print the summary once on rank 0; nothing happens where they are out already.

        ``failed``: the training ended with an exception, so what it left unfinished says nothing.
        """
        if not self.running:
            return
        self.running = False
        self.feed.stop()
        self.probe.stop()
        self._add(*self.schedule.at_end())
        if not failed:
            self._add(*self._unfinished())
        if self.facts.rank == 0 and not self.told:
            self.told = True
            self._tell()
        self._let_go()

    def _destroyed(self, destroy: Any) -> Any:
        """The engine is at its end, and so is the watch; a training that fails destroys it on its way out."""

        def wrapped(*words: Any, **options: Any) -> Any:
            if not sys.is_finalizing():  # DeepSpeed destroys what is left when Python ends
                self.stop(failed=sys.exc_info()[0] is not None)
            return destroy(*words, **options)

        return wrapped

    def _let_go(self) -> None:
        """Nothing of the model or of the data stays in memory because it was watched."""
        self.engine = self.loader = self.facts.engine = None
        self.feed.loader = None
        probe = self.probe
        probe.engine = probe.group = None
        probe.gradients, probe.window = GradientSum(()), Window(sampled=False, gradients=False)

    def report(self) -> Report:
        """What was found so far: shows as text, as HTML in a notebook, and as JSON with ``to_dict``."""
        facts, updates = self.facts, self.probe.updates
        batch = {
            "train_batch_size": facts.train,
            "train_micro_batch_size_per_gpu": facts.micro,
            "gradient_accumulation_steps": facts.gas,
            "data_parallel_size": facts.world,
        }
        engine = dict.fromkeys(list(batch)[:3], "the engine")
        missing = [] if updates or self.found else ["No optimizer step was seen: let the engine make one under watch."]
        return Report(self.findings, batch, engine, missing)

    def __enter__(self) -> Watch:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(failed=kind is not None)

    # What the probe and the loader say

    def _closed(self, closed: Closed) -> None:
        self.facts.refresh()
        case = Case(closed, self.facts)
        main = main_cause(case)
        sides = list(beside(case, main))
        sides += [*self.sizes.rule(case), *self.wanted.rule(case), *self.schedule.rule(case)]
        sides += self.share.rule(case, main)
        self._add(*([main] if main else []), *sides)
        if self.facts.rank == 0:  # the summary is printed here
            self._add(*elsewhere(closed.marks, [one.code for one in self.found]))

    def _event(self, code: str, place: Place) -> None:
        where, stage, gas = shown(place), f"ZeRO-{self.facts.stage}", self.facts.gas
        words = {
            "optimizer-step-bypasses-engine": f"optimizer.step() is called directly, not through the engine ({where}).",
            "backward-bypasses-engine": f"backward() is called on the loss itself, which {stage} refuses ({where}).",
            "no-sync-with-partitioned-gradients": f"no_sync is entered ({where}), which {stage} refuses.",
            "pipeline-train-batch": f"train_batch takes {gas} micro-batches, and the iterator had fewer ({where}).",
        }
        self._add(seen(code, words[code], [place]))

    def _resumed(self, place: Place) -> None:
        """The checkpoint's samples per update, against those of now."""
        engine = self.engine
        self.facts.refresh()
        if engine.global_steps and engine.global_samples != engine.global_steps * self.facts.train:
            then = engine.global_samples / engine.global_steps
            message = f"The checkpoint was written with {then:g} samples per optimizer step, and now there are "
            message += f"{self.facts.train} ({shown(place)})."
            self._add(seen("resume-changed-batch", message, [place]))

    def _epoch_ended(self) -> None:
        window, gas = self.probe.window, self.facts.gas
        if not window.backwards or gas == 1 or self._has_errors() or not self.facts.managed:
            return
        message = f"The loader has ended {len(window.backwards)} micro-batches into a window of {gas} "
        message += f"({shown(window.backwards[-1].place)}): they stay in the gradient buffers."
        self._add(seen("leftover-micro-batches", message, [window.backwards[-1].place]))

    def _unfinished(self) -> Iterator[Seen]:
        """What the end of the training shows."""
        window, engine = self.probe.window, self.engine
        count, place = len(window.backwards), window.backwards[-1].place if window.backwards else None
        if isinstance(self.probe, PipelineProbe):
            yield from self.probe.unfinished(len(self.loader) if hasattr(self.loader, "__len__") else None)
        if not count or self._has_errors():
            return
        if engine._is_gradient_accumulation_boundary is False and not self.probe.updates:
            message = f"The boundary is set to false and stays so ({shown(window.override_place or place)}): {count} "
            message += "micro-batches, and no update at all."
            yield seen("sticky-boundary-override", message, [window.override_place, place])
        elif window.steps == 0 and self.facts.managed and engine._is_gradient_accumulation_boundary is None:
            message = f"engine.step() was never called after the last {count} backwards ({shown(place)})."
            yield seen("guarded-engine-step", message, [place])
        elif self.facts.gas > 1 and not any(one.code == "leftover-micro-batches" for one in self.found):
            message = f"The last {count} micro-batches of a window of {self.facts.gas} were never applied "
            yield seen("leftover-micro-batches", f"{message}({shown(place)}).", [place])

    def _has_errors(self) -> bool:
        return any(one.severity == "error" for one in self.found)

    def _add(self, *findings: Seen) -> None:
        """Each code once, at its first place; the worst severity stays."""
        for one in findings:
            old = next((other for other in self.found if other.code == one.code), None)
            one.step = one.step or int(self.engine.global_steps)
            one.rank = one.rank or self.facts.rank
            if old is None:
                one.message += f" First seen at optimizer step {one.step}, rank {one.rank}."
                self.found.append(one)
                self.probe.suspicious = self.probe.world == 1
            elif SEVERITIES.index(one.severity) < SEVERITIES.index(old.severity):
                one.times = old.times + 1
                one.message += f" First seen at optimizer step {one.step}, rank {one.rank}."
                self.found[self.found.index(old)] = one
            else:
                old.times += 1
        self.probe.marks = marked(self.found)

    def _tell(self) -> None:
        report = self.report()
        if not self.quiet:
            print(f"dsaccum watch: {self.probe.updates} optimizer steps seen. {report}", file=sys.stderr, flush=True)
        if self.json is not None:
            write_report(report, self.probe.updates, self.json)


def write_report(report: Report, steps: int, target: Any) -> None:
    """The report as JSON, with the number of optimizer steps, into a file or an open stream.

    What cannot be written is said and not raised: the training is over, or on its way out with an error of its own.
    """
    text = json_text.dumps({**report.to_dict(), "optimizer_steps": steps}, indent=2, default=str) + "\n"
    try:
        with contextlib.ExitStack() as stack:
            if isinstance(target, str | os.PathLike):
                target = stack.enter_context(open(target, "w", encoding="utf-8"))
            target.write(text)
    except OSError as error:
        words = f"dsaccum watch: the report cannot be written to {target} ({error.strerror or error}). "
        print(f"{words}Smallest fix: json= in a folder that is there.", file=sys.stderr, flush=True)
