"""Right training loops, each of which ``watch`` must pass without an error or a warning. Run by watch_cases.py.

Each takes a Bench and makes at least five updates. All classify the digits; ``LABELS`` says which loops need tokens.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

COUNT, MICRO, UPDATES = 4, 8, 5


class Bench:
    """Makes engines and data for one loop."""

    def __init__(self, task: Any, stage: int, rank: int, world: int) -> None:
        self.task, self.stage, self.rank, self.world = task, stage, rank, world
        self.engines: list[Any] = []
        self.loader: Any = None
        torch.manual_seed(0)

    def config(self, **changes: Any) -> dict[str, Any]:
        basic = {
            "train_micro_batch_size_per_gpu": MICRO,
            "gradient_accumulation_steps": COUNT,
            "gradient_clipping": 0.0,
            "optimizer": {"type": "SGD", "params": {"lr": 0.05}},
            "zero_optimization": {"stage": self.stage},
            "zero_allow_untested_optimizer": True,
        }
        return basic | changes

    def engine(self, model: nn.Module | None = None, schedule: Any = None, **changes: Any) -> Any:
        import deepspeed

        torch.manual_seed(0)
        model = model or nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
        made = deepspeed.initialize(
            model=model,
            model_parameters=list(model.parameters()),
            config=self.config(**changes),
            lr_scheduler=schedule,
        )[0]
        self.engines.append(made)
        return made

    def batches(self, count: int = COUNT * UPDATES, size: int = MICRO) -> Any:
        """``count`` micro-batches of this rank."""
        for i in range(count):
            start = (i * self.world + self.rank) * size
            rows = torch.arange(start, start + size) % len(self.task.inputs)
            yield self.task.inputs[rows], self.task.targets[rows]


def _plain(bench: Bench, engine: Any, **options: Any) -> Any:
    def train() -> None:
        for x, y in bench.batches():
            engine.backward(functional.cross_entropy(engine(x), y), **options)
            engine.step()

    return train


def clipped(bench: Bench) -> Any:
    return _plain(bench, bench.engine(gradient_clipping=0.05))


def no_accumulation(bench: Bench) -> Any:
    return _plain(bench, bench.engine(gradient_accumulation_steps=1))


def divided_and_not_scaled(bench: Bench) -> Any:
    engine = bench.engine()

    def train() -> None:
        for x, y in bench.batches():
            engine.backward(functional.cross_entropy(engine(x), y) / COUNT, scale_wrt_gas=False)
            engine.step()

    return train


def half_squared_error(bench: Bench) -> Any:
    """The factor is that of the loss, not 1 / accumulation steps."""
    engine = bench.engine(gradient_accumulation_steps=2)

    def train() -> None:
        for x, y in bench.batches():
            engine.backward(0.5 * ((engine(x) - functional.one_hot(y, 10)) ** 2).mean())
            engine.step()

    return train


def several_terms(bench: Bench) -> Any:
    engine = bench.engine()

    def train() -> None:
        for x, y in bench.batches():
            out = engine(x)
            engine.backward(functional.cross_entropy(out, y) + 0.25 * out.pow(2).mean() - 0.1 * out.std())
            engine.step()

    return train


def _ragged(y: torch.Tensor, i: int) -> torch.Tensor:
    """Some targets are left out, in each micro-batch another number."""
    return torch.where(torch.arange(len(y)) < 2 + i % 5, y, -100)


def _window(bench: Bench, i: int) -> int:
    """Targets of the whole window, over all ranks."""
    first = i - i % COUNT
    return sum(min(2 + j % 5, MICRO) for j in range(first, first + COUNT)) * bench.world


def tokens_scaled_back(bench: Bench) -> Any:
    """Sum over the window's total, times what the engine will divide by."""
    engine = bench.engine()

    def train() -> None:
        for i, (x, y) in enumerate(bench.batches()):
            total = functional.cross_entropy(engine(x), _ragged(y, i), reduction="sum")
            engine.backward(total / _window(bench, i) * COUNT * bench.world)
            engine.step()

    return train


def tokens_not_scaled(bench: Bench) -> Any:
    engine = bench.engine()

    def train() -> None:
        for i, (x, y) in enumerate(bench.batches()):
            total = functional.cross_entropy(engine(x), _ragged(y, i), reduction="sum")
            engine.backward(total * bench.world / _window(bench, i), scale_wrt_gas=False)
            engine.step()

    return train


def tokens_by_mask(bench: Bench) -> Any:
    """The same with a mask written out."""
    engine = bench.engine()

    def train() -> None:
        for i, (x, y) in enumerate(bench.batches()):
            each = functional.cross_entropy(engine(x), y, reduction="none")
            mask = (_ragged(y, i) >= 0).float()
            engine.backward((each * mask).sum() / _window(bench, i) * bench.world, scale_wrt_gas=False)
            engine.step()

    return train


def mean_weighted_by_tokens(bench: Bench) -> Any:
    engine = bench.engine()

    def train() -> None:
        for i, (x, y) in enumerate(bench.batches()):
            labels = _ragged(y, i)
            share = int((labels >= 0).sum()) * bench.world / _window(bench, i)
            engine.backward(functional.cross_entropy(engine(x), labels) * share, scale_wrt_gas=False)
            engine.step()

    return train


def caller_owned(bench: Bench) -> Any:
    """managed_gradient_accumulation false, and as many micro-batches as the engine divides by."""
    engine = bench.engine(managed_gradient_accumulation=False)

    def train() -> None:
        for i, (x, y) in enumerate(bench.batches()):
            engine.backward(functional.cross_entropy(engine(x), y))
            if i % COUNT == COUNT - 1:
                engine.step()

    return train


def caller_owned_any_length(bench: Bench) -> Any:
    """Windows of three and of five, which the script divides."""
    engine = bench.engine(managed_gradient_accumulation=False, gradient_accumulation_steps=1)

    def train() -> None:
        batches = bench.batches(40)
        for length in (3, 5, 3, 5, 3, 5):
            for _ in range(length):
                x, y = next(batches)
                engine.backward(functional.cross_entropy(engine(x), y) / length)
            engine.step()

    return train


def caller_owned_own_factors(bench: Bench) -> Any:
    """Label smoothing and a small second summand: their weights do not sum to 1, and nothing is wrong with that."""
    engine = bench.engine(managed_gradient_accumulation=False)

    def train() -> None:
        for i, (x, y) in enumerate(bench.batches()):
            out = engine(x)
            engine.backward(functional.cross_entropy(out, y, label_smoothing=0.1) + 0.05 * out.pow(2).mean())
            if i % COUNT == COUNT - 1:
                engine.step()

    return train


def caller_owned_own_factors_any_length(bench: Bench) -> Any:
    engine = bench.engine(managed_gradient_accumulation=False)

    def train() -> None:
        batches = bench.batches(40)
        for length in (3, 5, 3, 5, 3, 5):
            for _ in range(length):
                x, y = next(batches)
                out = engine(x)
                loss = functional.cross_entropy(out, y) + 0.05 * out.pow(2).mean()
                engine.backward(loss / length, scale_wrt_gas=False)
            engine.step()

    return train


def quarter_of_a_loss(bench: Bench) -> Any:
    """The factor of one loss; the accumulation steps are two."""
    engine = bench.engine(gradient_accumulation_steps=2)

    def train() -> None:
        for x, y in bench.batches():
            engine.backward(0.25 * functional.cross_entropy(engine(x), y))
            engine.step()

    return train


def weighted_classes(bench: Bench) -> Any:
    """Rare classes count more; each micro-batch has as many targets as any other."""
    engine = bench.engine()

    def train() -> None:
        for x, y in bench.batches():
            engine.backward(functional.cross_entropy(engine(x), y, weight=torch.arange(1.0, 11.0)))
            engine.step()

    return train


def copied(bench: Bench) -> Any:
    """A copy of the model after each update, as for averaged weights."""
    engine = bench.engine()

    def train() -> None:
        for x, y in bench.batches():
            engine.backward(functional.cross_entropy(engine(x), y))
            engine.step()
            copy.deepcopy(engine.module)

    return train


def refused_backward(bench: Bench) -> Any:
    """A loss that the engine refuses is caught, and the micro-batch left out of the window as a whole."""
    engine = bench.engine()

    def train() -> None:
        for i, (x, y) in enumerate(bench.batches()):
            if i == 2:
                with contextlib.suppress(AssertionError):
                    engine.backward(functional.cross_entropy(engine(x), y, reduction="none"))
            engine.backward(functional.cross_entropy(engine(x), y))
            engine.step()

    return train


def validated_in_training_mode(bench: Bench) -> Any:
    """Another loader's batches pass forward with gradients and get no backward."""
    engine = bench.engine()
    rows = torch.utils.data.DataLoader(_Rows(bench, COUNT * UPDATES * MICRO), batch_size=MICRO)
    others = torch.utils.data.DataLoader(_Rows(bench, 3 * MICRO), batch_size=MICRO)

    def train() -> None:
        for i, (x, y) in enumerate(rows):
            engine.backward(functional.cross_entropy(engine(x), y))
            engine.step()
            if i % 6 == 5:
                sum(functional.cross_entropy(engine(x), y).item() for x, y in others)

    return train


def boundary_set(bench: Bench) -> Any:
    """As in the documentation of set_gradient_accumulation_boundary, one step() a window."""
    engine = bench.engine()

    def train() -> None:
        for i, (x, y) in enumerate(bench.batches()):
            engine.set_gradient_accumulation_boundary(i % COUNT == COUNT - 1)
            engine.backward(functional.cross_entropy(engine(x), y))
            if i % COUNT == COUNT - 1:
                engine.step()

    return train


def boundary_set_step_each(bench: Bench) -> Any:
    engine = bench.engine()

    def train() -> None:
        for i, (x, y) in enumerate(bench.batches()):
            engine.set_gradient_accumulation_boundary(i % COUNT == COUNT - 1)
            engine.backward(functional.cross_entropy(engine(x), y))
            engine.step()

    return train


def adversarial(bench: Bench) -> Any:
    """Two engines: the generator's loss runs through the discriminator, whose gradients are then cleared."""
    generator = bench.engine(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 64)))
    critic = bench.engine(nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 1)))
    score = functional.binary_cross_entropy_with_logits

    def train() -> None:
        noise = torch.Generator().manual_seed(bench.rank)
        for x, _ in bench.batches():
            fake = generator(torch.randn(len(x), 8, generator=noise))
            judged = critic(torch.cat([x, fake.detach()]))
            critic.backward(score(judged, torch.cat([torch.ones(len(x), 1), torch.zeros(len(x), 1)])))
            critic.step()
            for parameter in critic.module.parameters():
                parameter.requires_grad_(False)
            generator.backward(score(critic.module(fake), torch.ones(len(x), 1)))
            generator.step()
            for parameter in critic.module.parameters():
                parameter.requires_grad_(True)

    return train


def evaluated(bench: Bench) -> Any:
    """Validation in the middle of a window, with another batch size."""
    engine = bench.engine()

    def train() -> None:
        for i, (x, y) in enumerate(bench.batches()):
            engine.backward(functional.cross_entropy(engine(x), y))
            engine.step()
            if i % 3 == 2:
                engine.eval()
                with torch.no_grad():
                    engine(bench.task.evaluation_inputs)
                engine.train()

    return train


class _Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 10)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        hidden = checkpoint(lambda h: torch.tanh(self.middle(h)), hidden, use_reentrant=self.reentrant)
        return self.last(hidden)


def checkpointed(bench: Bench) -> Any:
    return _plain(bench, bench.engine(_Checkpointed(reentrant=False)))


def checkpointed_reentrant(bench: Bench) -> Any:
    return _plain(bench, bench.engine(_Checkpointed(reentrant=True)))


def _bf16(bench: Bench, **changes: Any) -> Any:
    engine = bench.engine(bf16={"enabled": True}, **changes)

    def train() -> None:
        for x, y in bench.batches():
            engine.backward(functional.cross_entropy(engine(x.bfloat16()).float(), y))
            engine.step()

    return train


def bf16(bench: Bench) -> Any:
    return _bf16(bench)


def bf16_summed_in_fp32(bench: Bench) -> Any:
    return _bf16(bench, data_types={"grad_accum_dtype": "fp32"} if bench.stage else {})


def overflow(bench: Bench) -> Any:
    """A gradient that is not finite: the engine leaves the update out and goes on (at ZeRO-0 it does not notice)."""
    engine = bench.engine()

    def train() -> None:
        for i, (x, y) in enumerate(bench.batches()):
            loss = functional.cross_entropy(engine(x), y)
            engine.backward(loss * float("inf") if i == 5 and bench.stage else loss)
            engine.step()

    return train


class _Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, bench: Bench, count: int) -> None:
        self.inputs, self.targets = bench.task.inputs[:count], bench.task.targets[:count]

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index], self.targets[index]


def last_batch_partial(bench: Bench) -> Any:
    """Two epochs of four micro-batches each, the last of which is short."""
    engine = bench.engine()
    bench.loader = torch.utils.data.DataLoader(_Rows(bench, 3 * MICRO + 3), batch_size=MICRO)

    def train() -> None:
        for _ in range(3):
            for x, y in bench.loader:
                engine.backward(functional.cross_entropy(engine(x), y))
                engine.step()

    return train


def deepspeed_loader(bench: Bench) -> Any:
    """The loader that deepspeed.initialize makes."""
    import deepspeed

    model = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
    rows = _Rows(bench, 2 * COUNT * MICRO * bench.world)
    engine, _, bench.loader, _ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=bench.config(), training_data=rows
    )
    bench.engines.append(engine)

    def train() -> None:
        for _ in range(2):
            for x, y in bench.loader:
                engine.backward(functional.cross_entropy(engine(x), y))
                engine.step()

    return train


def scheduler_of_the_engine(bench: Bench) -> Any:
    schedule = lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))  # noqa: E731
    return _plain(bench, bench.engine(schedule=schedule))


def scheduler_of_the_script(bench: Bench) -> Any:
    """Stepped by the script, once for each update."""
    engine = bench.engine()
    scheduler = torch.optim.lr_scheduler.LambdaLR(engine.basic_optimizer, lambda step: 1 / (1 + step))

    def train() -> None:
        for x, y in bench.batches():
            engine.backward(functional.cross_entropy(engine(x), y))
            boundary = engine.is_gradient_accumulation_boundary()
            engine.step()
            if boundary:
                scheduler.step()

    return train


def cleared_between_windows(bench: Bench) -> Any:
    engine = bench.engine()

    def train() -> None:
        for i, (x, y) in enumerate(bench.batches()):
            if i % COUNT == 0:
                engine.zero_grad()
            engine.backward(functional.cross_entropy(engine(x), y))
            engine.step()

    return train


def direct(bench: Bench) -> Any:
    """loss.backward() is right from ZeRO-1 on: the engine divides behind the loss."""
    engine = bench.engine()

    def train() -> None:
        for x, y in bench.batches():
            loss = functional.cross_entropy(engine(x), y)
            if bench.stage:
                loss.backward()
            else:
                engine.backward(loss)
            engine.step()

    return train


def two_passes_one_loss(bench: Bench) -> Any:
    """A consistency loss: the model sees each micro-batch twice, and backward is called once."""
    engine = bench.engine(nn.Sequential(nn.Linear(64, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 10)))

    def train() -> None:
        for x, y in bench.batches():
            first, second = engine(x), engine(x)
            engine.backward(functional.cross_entropy(first, y) + 0.1 * (first - second).pow(2).mean())
            engine.step()

    return train


def gathered_losses(bench: Bench) -> Any:
    """The losses of a window are added up and have one backward."""
    engine = bench.engine(gradient_accumulation_steps=1)

    def train() -> None:
        batches = bench.batches()
        for _ in range(UPDATES):
            losses = [functional.cross_entropy(engine(x), y) for x, y in (next(batches) for _ in range(COUNT))]
            engine.backward(sum(losses) / COUNT)
            engine.step()

    return train


def gradients_kept_local(bench: Bench) -> Any:
    """no_sync for all but the last micro-batch, and step() for each; ZeRO-2 and 3 refuse it."""
    if bench.stage > 1:
        return _plain(bench, bench.engine())
    engine = bench.engine()

    def train() -> None:
        for i, (x, y) in enumerate(bench.batches()):
            if i % COUNT == COUNT - 1:
                engine.backward(functional.cross_entropy(engine(x), y))
            else:
                with engine.no_sync():
                    engine.backward(functional.cross_entropy(engine(x), y))
            engine.step()

    return train


def frozen_batch_norm(bench: Bench) -> Any:
    model = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 10))
    engine = bench.engine(model)
    engine.module[1].eval()
    return _plain(bench, engine)


def loss_in_the_model(bench: Bench) -> Any:
    """The model takes keywords and gives an object with the loss, as those of Transformers do."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))

        def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {"loss": functional.cross_entropy(self.layers(batch["x"]), batch["y"])}

    engine = bench.engine(Model())

    def train() -> None:
        for x, y in bench.batches():
            engine.backward(engine(batch={"x": x, "y": y})["loss"])
            engine.step()

    return train


def logged_norm(bench: Bench) -> Any:
    """clip_grad_norm_ of another model's parameters, inside the window."""
    engine = bench.engine()
    other = SimpleNamespace(weight=nn.Parameter(torch.ones(3)))

    def train() -> None:
        for x, y in bench.batches():
            engine.backward(functional.cross_entropy(engine(x), y))
            other.weight.grad = torch.ones(3)
            torch.nn.utils.clip_grad_norm_([other.weight], 1.0)
            engine.step()

    return train


def thawed(bench: Bench) -> Any:
    """A layer that is frozen for the first window, while DeepSpeed knows it already."""
    engine = bench.engine()
    if bench.stage:
        return _plain(bench, engine)  # ZeRO wants a gradient of every parameter that it was given
    engine.module[0].requires_grad_(False)

    def train() -> None:
        for i, (x, y) in enumerate(bench.batches()):
            if i == COUNT:
                engine.module[0].requires_grad_(True)
            engine.backward(functional.cross_entropy(engine(x), y))
            engine.step()

    return train


def frozen_in_turns(bench: Bench) -> Any:
    """One layer is trained in the first window, the other one from then on."""
    engine = bench.engine(nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 10)))
    if bench.stage:
        return _plain(bench, engine)  # ZeRO wants a gradient of every parameter that it was given
    engine.module[0].requires_grad_(False)

    def train() -> None:
        for i, (x, y) in enumerate(bench.batches()):
            if i == COUNT:
                engine.module[0].requires_grad_(True)
                engine.module[2].requires_grad_(False)
            engine.backward(functional.cross_entropy(engine(x), y))
            engine.step()

    return train


def cut_by_the_script(bench: Bench) -> Any:
    """The loader gives a window at a time, and the script cuts it into micro-batches."""
    engine = bench.engine()
    rows = list(bench.batches(UPDATES, COUNT * MICRO))
    bench.loader = torch.utils.data.DataLoader(rows, batch_size=None)  # type: ignore[arg-type]

    def train() -> None:
        for many, labels in bench.loader:
            for x, y in zip(many.chunk(COUNT), labels.chunk(COUNT), strict=True):
                engine.backward(functional.cross_entropy(engine(x), y))
                engine.step()

    return train


def two_loaders(bench: Bench) -> Any:
    """Labelled and unlabelled rows in turns; the shorter loader begins anew in the middle of a window."""
    engine = bench.engine()
    long = torch.utils.data.DataLoader(_Rows(bench, COUNT * UPDATES // 2 * MICRO), batch_size=MICRO)
    short = torch.utils.data.DataLoader(_Rows(bench, 3 * MICRO), batch_size=MICRO)

    def train() -> None:
        again = iter(short)
        for pair in long:
            other = next(again, None)
            if other is None:
                again = iter(short)
                other = next(again)
            for x, y in (pair, other):
                engine.backward(functional.cross_entropy(engine(x), y))
                engine.step()

    return train


def sparse_embedding(bench: Bench) -> Any:
    """Gradients and inputs that are sparse tensors; ZeRO refuses such gradients."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(64, 16, sparse=bench.stage == 0)
            self.last = nn.Linear(16, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = x.to_dense() if x.is_sparse else x
            return self.last(self.bag(rows.topk(8).indices))

    engine = bench.engine(Model())

    def train() -> None:
        for x, y in bench.batches():
            engine.backward(functional.cross_entropy(engine(x.to_sparse()), y))
            engine.step()

    return train


def image_lists(bench: Bench) -> Any:
    """A list of images and one of boxes: no first dimension is the batch."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Linear(64, 10)

        def forward(self, images: list[torch.Tensor]) -> torch.Tensor:
            return self.layers(torch.stack([image.flatten() for image in images]))

    engine = bench.engine(Model())
    rows = list(bench.batches())
    items = [([row.reshape(1, 8, 8) for row in x], [{"label": label.reshape(1)} for label in y]) for x, y in rows]
    bench.loader = torch.utils.data.DataLoader(items, batch_size=None)  # type: ignore[arg-type]

    def train() -> None:
        for images, targets in bench.loader:
            labels = torch.cat([target["label"] for target in targets])
            engine.backward(functional.cross_entropy(engine(images), labels))
            engine.step()

    return train


def _texts(bench: Bench, shape: Callable[[torch.Tensor], torch.Tensor], tokens: int) -> Any:
    """Digits read as texts of tokens, in this shape."""
    engine = bench.engine(nn.Sequential(nn.Embedding(32, 16), nn.Tanh(), nn.Linear(16, 32)))
    rows = [shape(x[:, :tokens].long().clamp(0, 31)) for x, _ in bench.batches()]
    items = [{"input_ids": one, "labels": one} for one in rows]
    bench.loader = torch.utils.data.DataLoader(items, batch_size=None)  # type: ignore[arg-type]

    def train() -> None:
        for item in bench.loader:
            engine.backward(functional.cross_entropy(engine(item["input_ids"]).flatten(0, 1), item["labels"].flatten()))
            engine.step()

    return train


def packed_texts(bench: Bench) -> Any:
    """All texts of a micro-batch in one row."""
    return _texts(bench, lambda x: x.reshape(1, -1), 12)


def sequence_first(bench: Bench) -> Any:
    return _texts(bench, lambda x: x.T.contiguous(), 12)


def graph_batches(bench: Bench) -> Any:
    """Nodes of many graphs in one tensor, the edges, and to which graph each node belongs."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Linear(16, 10)

        def forward(self, nodes: torch.Tensor, edges: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
            sums = torch.zeros(MICRO, 16).index_add(0, graph, nodes + nodes.index_select(0, edges[1]))
            return self.layers(sums)

    engine = bench.engine(Model())

    def train() -> None:
        for x, y in bench.batches():
            edges = torch.arange(4 * MICRO).expand(2, -1)
            graph = torch.arange(MICRO).repeat_interleave(4)
            engine.backward(functional.cross_entropy(engine(x.reshape(4 * MICRO, 16), edges, graph), y))
            engine.step()

    return train


class _Breaks(torch.autograd.Function):
    """Breaks off in the middle of a backward pass, as one that runs out of memory."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, breaks: bool) -> torch.Tensor:
        context.breaks = breaks
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        if context.breaks:
            raise MemoryError
        return gradients[0], None


def broken_backward(bench: Bench) -> Any:
    """A backward breaks off half way, is caught, and the micro-batch is tried again after what it left is cleared."""
    engine = bench.engine()
    if bench.stage:
        return _plain(bench, engine)  # ZeRO does not go on after it

    def train() -> None:
        for i, (x, y) in enumerate(bench.batches()):
            for breaks in (True, False) if i == COUNT else (False,):
                hidden = engine.module[1](engine.module[0](x)) if breaks else None
                out = engine.module[2](_Breaks.apply(hidden, True)) if breaks else engine(x)
                try:
                    engine.backward(functional.cross_entropy(out, y))
                except MemoryError:
                    engine.zero_grad()
            engine.step()

    return train


#: Of these nothing at all may be said, not even in a note.
SILENT = (
    *("clipped", "cut_by_the_script", "frozen_in_turns", "two_loaders", "sparse_embedding"),
    *("image_lists", "packed_texts", "sequence_first", "graph_batches", "broken_backward"),
)

LOOPS: dict[str, Callable[[Bench], Any]] = {
    loop.__name__: loop
    for loop in (
        *(clipped, no_accumulation, divided_and_not_scaled, half_squared_error, several_terms),
        *(tokens_scaled_back, tokens_not_scaled, tokens_by_mask, mean_weighted_by_tokens),
        *(caller_owned, caller_owned_any_length, caller_owned_own_factors, caller_owned_own_factors_any_length),
        *(copied, refused_backward, validated_in_training_mode),
        *(weighted_classes, quarter_of_a_loss, boundary_set, boundary_set_step_each, adversarial, evaluated),
        *(checkpointed, checkpointed_reentrant, bf16, bf16_summed_in_fp32, overflow, last_batch_partial),
        *(deepspeed_loader, scheduler_of_the_engine, scheduler_of_the_script, cleared_between_windows, direct),
        *(two_passes_one_loss, gathered_losses, gradients_kept_local, frozen_batch_norm, loss_in_the_model),
        *(logged_norm, thawed, frozen_in_turns, cut_by_the_script, two_loaders, sparse_embedding),
        *(image_lists, packed_texts, sequence_first, graph_batches, broken_backward),
    )
}
