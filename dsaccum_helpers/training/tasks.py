"""The course's tasks: real data that ships with Python or scikit-learn, and small models. Imports torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy
import torch
from torch import nn
from torch.nn import functional

from dsaccum_helpers.setting import Setting


@dataclass(frozen=True)
class Task:
    """Tensors and a model factory. All tensors have the sample dimension first.

    The evaluation set is small on purpose: it is run at every optimizer step, and must cost little beside the training.
    ``criterion(outputs, targets)`` is a mean over the samples, so that full batch and accumulation must agree.
    ``optimum`` is the smallest reachable evaluation loss, where it is known in closed form. ``auxiliary(outputs)`` is a
    second term of the loss, a mean over the samples too, where an entry adds one.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    evaluation_inputs: torch.Tensor
    evaluation_targets: torch.Tensor
    make_model: Callable[[], nn.Module]
    criterion: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    optimum: float | None = None
    auxiliary: Callable[[torch.Tensor], torch.Tensor] | None = None


def load_task(name: str) -> Task:
    """The task with this name (see ``setting.TASKS``), in fp32 on the CPU. Data is read once a process."""
    if name == "regression":
        return _regression()
    if name == "digits":
        return _digits()
    return _language(width=32, layers=2, heads=2) if name == "language" else _language(width=128, layers=4, heads=4)


@functools.cache
def _regression() -> Task:
    """Diabetes progression from 10 standardised measurements of 442 people; least squares gives the optimum."""
    from sklearn.datasets import load_diabetes

    raw = load_diabetes()
    columns = numpy.column_stack([raw.data, raw.target])
    columns = (columns - columns.mean(0)) / columns.std(0)
    design = numpy.column_stack([columns[:, :-1], numpy.ones(len(columns))])
    solution = numpy.linalg.lstsq(design, columns[:, -1], rcond=None)[0]
    optimum = float(((design @ solution - columns[:, -1]) ** 2).mean())
    inputs = torch.tensor(columns[:, :-1], dtype=torch.float32)
    targets = torch.tensor(columns[:, -1:], dtype=torch.float32)
    return Task(inputs, targets, inputs, targets, lambda: nn.Linear(10, 1), functional.mse_loss, optimum)


@functools.cache
def _digits() -> Task:
    """1,733 images of 8 × 8 pixels to train on, 64 to evaluate on; ten classes."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    inputs = torch.tensor((raw.data - raw.data.mean()) / raw.data.std(), dtype=torch.float32)
    targets = torch.tensor(raw.target, dtype=torch.long)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    inputs, targets = inputs[order], targets[order]

    def make_model() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32), nn.ReLU(), nn.Linear(32, 10))

    return Task(inputs[64:], targets[64:], inputs[:64], targets[:64], make_model, functional.cross_entropy)


CONTEXT = 32


@functools.cache
def _text() -> tuple[torch.Tensor, int]:
    """Python's own help texts as numbers, one a character (shape: characters), and the size of the alphabet."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    # What is not plain English text becomes a question mark: the same alphabet in every version of Python.
    codes = numpy.frombuffer(text.encode("ascii", "replace"), dtype=numpy.uint8).astype(numpy.int64)
    codes = numpy.where(codes == 10, 95, codes - 32)
    return torch.from_numpy(codes), 96


@functools.cache
def _language(width: int, layers: int, heads: int) -> Task:
    """Predict each next character of a window of 32; every micro-batch holds the same number of targets."""
    codes, alphabet = _text()
    count = len(codes) // (CONTEXT + 1)
    windows = codes[: count * (CONTEXT + 1)].view(count, CONTEXT + 1)
    windows = windows[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
    held, train = windows[:4], windows[4:]

    def criterion(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    return Task(
        train[:, :-1],
        train[:, 1:],
        held[:, :-1],
        held[:, 1:],
        lambda: LanguageModel(alphabet, width, layers, heads),
        criterion,
    )


class LanguageModel(nn.Module):
    """A decoder-only transformer: character numbers (samples, 32) to logits (samples, 32, alphabet)."""

    def __init__(self, alphabet: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(alphabet, width)
        self.position = nn.Parameter(torch.randn(CONTEXT, width) * 0.02)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, alphabet)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Logits for the character after each position."""
        return self.head(self.norm(self.blocks(self.embedding(characters) + self.position)))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, positions, width = x.shape
        split = self.attention_in(self.attention_norm(x)).view(samples, positions, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(samples, positions, width))
        return x + self.mlp(self.mlp_norm(x))


def fresh_model(task: Task, setting: Setting) -> nn.Module:
    """The model that every run of this setting starts from, the same weights in every process."""
    torch.manual_seed(setting.seed)
    return task.make_model()


class Stream:
    """The samples in the order in which every run of a setting reads them, without end; the order repeats.

    In bf16 the numbers are rounded here, because DeepSpeed casts the model and leaves the inputs to the script.
    """

    def __init__(self, task: Task, setting: Setting) -> None:
        self.order = torch.randperm(len(task.inputs), generator=torch.Generator().manual_seed(setting.seed))
        self.inputs, self.targets = (
            tensor.bfloat16() if setting.dtype == "bf16" and tensor.is_floating_point() else tensor
            for tensor in (task.inputs, task.targets)
        )

    def take(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """``count`` samples from place ``start`` on: inputs and targets, sample dimension first."""
        chosen = self.order[torch.arange(start, start + count).remainder_(len(self.order))]
        return self.inputs[chosen], self.targets[chosen]


class Loader:
    """One process's micro-batches: at each turn the processes read blocks that lie side by side in the stream.

    Iterating gives one epoch of ``length`` pairs (inputs, targets); the next epoch reads on where the last one ended.
    ``sizes``: samples in each micro-batch, repeated in this order.
    ``samples_read`` counts this process's samples from the tensors it handed out.
    """

    def __init__(
        self,
        stream: Stream,
        sizes: tuple[int, ...],
        length: int,
        rank: int,
        processes: int,
        device: torch.device,
    ) -> None:
        self.stream, self.sizes, self.length = stream, sizes, length
        self.rank, self.processes, self.device = rank, processes, device
        self.samples_read = 0
        self.micro_batches_read = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(self.length):
            size = self.sizes[self.micro_batches_read % len(self.sizes)]
            inputs, targets = self.stream.take(self.samples_read * self.processes + self.rank * size, size)
            self.samples_read += len(inputs)
            self.micro_batches_read += 1
            yield inputs.to(self.device), targets.to(self.device)
