"""What is wrong beside the gradient's scale: sizes, tokens, schedule, layers. Each rule gives findings or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.mismatches.near_keys import nearest
from dsaccum_helpers.observer.causes import Case
from dsaccum_helpers.observer.facts import Facts, Seen, seen
from dsaccum_helpers.observer.places import shown

#: From so many 16-bit terms on the rounding of the sum is worth a warning (0.9 % at 64, measured).
MANY_TERMS = 32
#: Optimizers whose update does not depend on the gradient's scale.
_SCALE_FREE = ("adam", "lamb", "lion", "muon", "adafactor")


def at_start(facts: Facts) -> Iterator[Seen]:
    """What the engine's numbers say by themselves."""
    engine = facts.engine
    if isinstance(facts.gas, bool) or not isinstance(facts.gas, int):
        message = f"gradient_accumulation_steps is {facts.gas!r}, which is not a whole number."
        yield seen("batch-value-type", message)
    managed = engine.managed_gradient_accumulation()
    if not isinstance(managed, bool):
        message = f"managed_gradient_accumulation is {managed!r}, no boolean: it counts as {str(bool(managed)).lower()}"
        yield seen("caller-owned-boundary", f"{message}, and the engine {'goes on' if managed else 'stops'} counting.")
    norms = [name for name, module in engine.module.named_modules() if _normalises(module)]
    if norms and facts.gas > 1:
        message = f"{len(norms)} BatchNorm layers ({norms[0] or 'the model'}) see {facts.micro} samples at a time, "
        message += f"{facts.gas} times for every optimizer step."
        yield seen("batch-norm-per-micro-batch", message)
    yield from _sum_type(facts)
    yield from _keys(engine)


def _keys(engine: Any) -> Iterator[Seen]:
    """Keys of the config that DeepSpeed ignores, where they are the accumulation steps misspelt."""
    config = getattr(engine._config, "_param_dict", None)
    config = config if isinstance(config, dict) else {}
    for key in config:
        if isinstance(key, str) and key not in KEYS and (meant := nearest(key, KEYS)) and meant[0] not in config:
            message = f'The config\'s "{key}" is no key that DeepSpeed knows, and "{meant[0]}" is not there: it counts '
            message += f"{engine.gradient_accumulation_steps()} accumulation steps."
            yield seen("unknown-config-key", message, fix=f'Write "{meant[0]}" in place of "{key}".')


def _normalises(module: Any) -> bool:
    return isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.training


def _sum_type(facts: Facts) -> Iterator[Seen]:
    model, sums = facts.engine.get_data_types()
    if facts.gas >= MANY_TERMS and model == torch.bfloat16 and sums in (None, torch.bfloat16):
        message = f"{facts.gas} micro-batches of bf16 gradients are added up in bf16 before each optimizer step."
        yield seen("accumulation-dtype", message)


def beside(case: Case, main: Seen | None) -> Iterator[Seen]:
    """What stands beside the main cause of a window."""
    facts = case.facts
    yield from _tokens(case)
    yield from _auxiliary(case, main)
    if main is not None and main.severity == "error" and case.short_scale and main.code != "clipping-hides-scale":
        hides = [f"gradient_clipping {facts.clip:g}"] if facts.clip > 0 else []
        hides += [facts.optimizer] if any(word in facts.optimizer.lower() for word in _SCALE_FREE) else []
        if hides:
            message = "The gradient's scale is wrong, and the loss may not show it: it is hidden by "
            message += f"{' and '.join(hides)}."
            found = seen("clipping-hides-scale", message)
            found.because_of = main.code
            yield found


def _tokens(case: Case) -> Iterator[Seen]:
    if case.closed.token_range is None or case.count * case.world < 2:
        return
    fewest, most = case.closed.token_range
    if most <= 1.05 * fewest:
        return
    message = f"The micro-batches of one update have {fewest:.0f} to {most:.0f} targets, each takes the mean over its "
    message += f"own, and these means weigh the same ({shown(case.place)})."
    yield seen("unweighted-token-mean", message, [case.place])


def _auxiliary(case: Case, main: Seen | None) -> Iterator[Seen]:
    """One summand is divided over the window by the script, another one by nobody."""
    if main is not None or case.gas == 1 or any(b.scaled or b.direct for b in case.backwards) or case.count < 2:
        return
    whole, plain = 0, 0
    for terms in case.closed.terms:
        if len(terms) < 2:
            return
        whole += any(case.near(t.factor * case.count, 1.0) or t.kind in ("total", "sum") for t in terms)
        plain += any(t.kind in ("mean", "other") and not case.near(t.divided * case.count, 1.0) for t in terms)
    if whole == plain == case.count:
        message = f"With scale_wrt_gas=False ({shown(case.place)}) one summand of the loss is divided over the window "
        message += f"by the script and another one by nobody: it enters the update {case.count} times."
        yield seen("auxiliary-loss-unscaled", message, [case.place])


class Sizes:
    """Samples that arrive in a micro-batch, against what the config says."""

    def __init__(self) -> None:
        self.right = 0
        self.wrong: list[int] = []
        self.said = False

    def rule(self, case: Case) -> Iterator[Seen]:
        """No window so far is made of the samples of the config, and there were enough to be no short last one."""
        sizes = _sizes(case)
        if case.several or not sizes or self.said:
            return
        self.right += sum(sizes) == case.count * case.facts.micro or case.facts.micro in sizes
        self.wrong += sizes
        if self.right or len(self.wrong) < 2:
            return
        self.said = True
        sizes = sorted(set(self.wrong))
        given = " or ".join(map(str, sizes)) if len(sizes) < 4 else f"{sizes[0]} to {sizes[-1]}"
        message = f"The config says {case.facts.micro} samples per micro-batch and rank, and {given} arrive"
        message += f" ({shown(case.place)})."
        severity = None
        if case.backwards[0].read is None and all(size % case.facts.micro == 0 for size in sizes):
            severity = "note"
            message += " That is right where the script joins micro-batches itself; name the loader to know."
        yield seen("loader-batch-differs", message, [case.place], severity=severity)


def _sizes(case: Case) -> list[int]:
    """Samples of each micro-batch: as the loader gave them where it is followed, else as the forward pass was given."""
    sizes = [backward.samples if backward.read is None else backward.read for backward in case.backwards]
    return [size for size in sizes if size is not None] if None not in sizes else []


class Wanted:
    """The train batch that is meant, against the samples that an update is really made of."""

    def __init__(self, wanted: int | None) -> None:
        self.wanted = wanted

    def rule(self, case: Case) -> Iterator[Seen]:
        """The first window of which all sizes are known decides."""
        sizes = _sizes(case)
        if self.wanted is None or not sizes or case.several or case.window.broken:
            return
        wanted, facts = self.wanted, case.facts
        real = sum(sizes) * case.world
        self.wanted = None
        if real == wanted:
            return
        each = facts.micro * case.world
        message = f"Each update is made of {real} samples ({case.count} micro-batches of {sizes[0]} on {case.world} "
        message += f"rank{'s' * (case.world != 1)}), and {wanted} are wanted."
        if case.gas == 1 and case.count == 1 and wanted > real and wanted % each == 0:
            message += f" Accumulation was never switched on: {wanted // each} accumulation steps would be needed."
            fix = f"gradient_accumulation_steps {wanted // each} in the config that the engine is given."
            does = "The engine updates after every micro-batch."
            yield seen("accumulation-key-missing", message, [case.place], severity="error", fix=fix, consequence=does)
        else:
            fix = f"Numbers whose product is {wanted}: micro-batch x accumulation steps x {case.world}."
            title = "An update is not made of the samples that are wanted"
            does = "Every update averages over another number of samples than is meant."
            yield seen("batch-product-mismatch", message, [case.place], title=title, fix=fix, consequence=does)


class Schedule:
    """The learning rate from update to update."""

    def __init__(self) -> None:
        self.moving = 0  # windows in which it moved more than once
        self.still = 0  # windows since it stopped
        self.most = 0
        self.first: Seen | None = None

    def rule(self, case: Case) -> Iterator[Seen]:
        """The engine's own scheduler is stepped by the script as well, or the rate has come to its end too soon."""
        window = case.window
        if window.scheduler_outside:
            message = "The engine steps its scheduler at each update, and the script steps it "
            message += f"{window.scheduler_outside} more times ({shown(window.scheduler_place)})."
            yield seen("scheduler-unit", message, [window.scheduler_place])
        moved = len(window.rates) - 1
        if moved >= 2 and not window.scheduler_outside:
            self.moving += 1
            self.most = max(self.most, moved)
            if self.first is None:
                self.first = self._say(case)
                self.first.step = case.facts.engine.global_steps
        elif self.moving and moved <= 0:
            self.still += 1

    def at_end(self) -> Iterator[Seen]:
        """A rate that moves with the micro-batches is wrong where it stands still before the run ends."""
        if self.first is not None:
            if self.still < 2:
                self.first.severity = "note"
                self.first.message += " That is right only where the schedule was planned in micro-batches."
            else:
                self.first.message += f" It then stood still for {self.still} updates."
            yield self.first

    def _say(self, case: Case) -> Seen:
        place = case.window.scheduler_place or case.place
        message = f"The learning rate moves {len(case.window.rates) - 1} times between two updates ({shown(place)}): "
        return seen("scheduler-unit", message + "it follows the micro-batches and not the optimizer steps.", [place])
