"""The script reader: what it understands of a program, by hand, and that nothing breaks or hangs it."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsaccum_helpers.job import Job, JobError, Launch, Source
from dsaccum_helpers.readers import script
from dsaccum_helpers.trace import Event, Program

CASES = Path(__file__).resolve().parents[1] / "cases"
HEAD = """
import deepspeed, torch
from mine import Net, Data
engine, optimizer, loader, scheduler = deepspeed.initialize(model=Net(), training_data=Data(), config="ds.json")
mse = torch.nn.functional.mse_loss
"""


def read(*files: str, job: Job | None = None, names: tuple[str, ...] = ("a.py", "b.py")) -> Program:
    job = job or Job()
    script.read(list(zip(names, files, strict=False)), job)
    return job.programs[0]


def events(body: str, *kinds: str) -> list[Event]:
    return [event for event in read(HEAD + body).events if not kinds or event.kind in kinds]


def failure(text: str) -> str | None:
    try:
        read(text)
    except JobError as error:
        return str(error)
    return None


def divisions(event: Event) -> list[Any]:
    return [division.value for term in event.info["loss"].terms for division in term.divisions]


@pytest.mark.parametrize(
    ("before", "name"),
    [
        ("engine, *_ = deepspeed.initialize(model=net)", "engine"),
        ("engine = deepspeed.initialize(model=net)[0]", "engine"),
        ("parts = deepspeed.initialize(model=net)\nengine = parts[0]", "engine"),
        ("self = Holder()\nself.engine, _, _, _ = deepspeed.initialize(model=net)", "self.engine"),
        ("engines = {'actor': deepspeed.initialize(model=net)[0]}", "engines['actor']"),
        ("def make():\n    e, _, _, _ = deepspeed.initialize(model=net)\n    return e\nengine = make()", "engine"),
        ("from deepspeed import initialize as start\nengine, *_ = start(model=net)", "engine"),
        ("import deepspeed as ds\n(engine, opt, _, _) = ds.initialize(model=net)", "engine"),
    ],
)
def test_the_engine_is_followed_from_initialize(before: str, name: str) -> None:
    code = f"import deepspeed\nfrom mine import net, data, Holder\n{before}\nfor x in data:\n"
    program = read(code + f"    loss = {name}(x)\n    {name}.backward(loss)\n    {name}.step()\n")
    assert [event.kind for event in program.events] == ["forward", "backward", "step"]
    assert len({event.actor for event in program.events}) == 1
    assert [len(event.loops) for event in program.events] == [1, 1, 1]


@pytest.mark.parametrize(
    ("division", "expected"),
    [
        ("loss = loss / 4", 4),
        ("loss /= n", 4),
        ("loss = loss * (1 / engine.gradient_accumulation_steps())", 4),
        ("loss = torch.div(loss, n)", 4),
        ("loss = loss.div(n)", 4),
        ("loss.div_(n)", 4),
        ("loss = (lambda t: t / n)(loss)", 4),
    ],
)
def test_a_division_is_remembered(division: str, expected: int) -> None:
    body = f"n = 4\nfor x, y in loader:\n    loss = mse(engine(x), y)\n    {division}\n    engine.backward(loss)\n"
    (backward,) = events(body, "backward")
    assert [value.known(gas=4) for value in divisions(backward)] == [expected]


@pytest.mark.parametrize(
    ("test", "kind"),
    [
        ("(i + 1) % 4 == 0", "every"),
        ("not (i + 1) % 4", "every"),
        ("i % 4 == 3", "every"),
        ("(i + 1) % 4 != 0", "not-every"),
        ("(r := (i + 1) % 4) == 0", "every"),
        ("(i + 1) % 4 == 0 or i + 1 == len(loader)", "every"),
        ("engine.is_gradient_accumulation_boundary()", "boundary"),
        ("i == len(loader) - 1", "last"),
        ("loss > 10", "data"),
        ("use_it", "static"),
    ],
)
def test_a_condition_is_understood(test: str, kind: str) -> None:
    body = f"for i, (x, y) in enumerate(loader):\n    loss = mse(engine(x), y)\n    if {test}:\n        engine.step()\n"
    (step,) = events(body, "step")
    assert [guard.kind for guard in step.guards] == [kind]
    if "every" in kind:
        assert step.guards[0].count.known() == 4


def test_what_follows_an_early_continue_stands_under_its_opposite() -> None:
    body = "for i, (x, y) in enumerate(loader):\n    if i % 4:\n        continue\n    engine.step()\n"
    (step,) = events(body, "step")
    assert [guard.kind for guard in step.guards] == ["every"]


def test_functions_methods_and_files_are_followed() -> None:
    main = """
import deepspeed
from b import Trainer
from mine import net, data
Trainer(deepspeed.initialize(model=net, config="ds.json")[0]).fit(data)
"""
    other = """
class Base:
    def micro_batch(self, batch):
        self.engine.backward(self.scaled(self.engine(batch)))
        self.advance()

    def advance(self):
        self.engine.step()


class Trainer(Base):
    def __init__(self, engine, accumulation_steps=8):
        self.engine, self.accumulation_steps = engine, accumulation_steps

    def scaled(self, loss):
        return loss / self.accumulation_steps

    def fit(self, data):
        for batch in data:
            self.micro_batch(batch)
"""
    program = read(main, other)
    backward, step = (event for event in program.events if event.kind != "forward")
    assert (backward.source.file, backward.source.line) == ("b.py", 4)
    assert [value.known() for value in divisions(backward)] == [8]
    assert divisions(backward)[0].counts
    assert len(backward.loops) == len(step.loops) == 1


@pytest.mark.parametrize(
    "settings_",
    [
        'import argparse\np = argparse.ArgumentParser()\np.add_argument("--accum", "-a", type=int, default=2)\n'
        "n = p.parse_args().accum",
        "import click\n@click.command()\n@click.option('--accum', default=2)\ndef run(accum):\n    return accum\n"
        "n = run()",
        "from dataclasses import dataclass\nfrom transformers import HfArgumentParser\n@dataclass\nclass A:\n"
        "    accum: int = 2\n(a,) = HfArgumentParser(A).parse_args_into_dataclasses()\nn = a.accum",
        "import os\nn = int(os.environ.get('accum', '2'))",
    ],
)
@pytest.mark.parametrize(("words", "expected"), [([], 2), (["--accum", "6"], 6), (["--accum=6"], 6)])
def test_the_command_line_overrides_defaults(settings_: str, words: list[str], expected: int) -> None:
    job = Job()
    job.launches.append(Launch("python", Source("run.sh"), script="a.py", words=words))
    body = "\nfor x, y in loader:\n    engine.backward(mse(engine(x), y) / n)\n"
    if "environ" in settings_:
        job.add("environment.accum", expected)
    program = read(HEAD + settings_ + body, job=job)
    assert [value.known() for value in divisions(program.of(None, "backward")[0])] == [expected]


def test_loader_facts_come_from_the_loader_that_is_trained_on() -> None:
    job = Job()
    body = """
from torch.utils.data import DataLoader
valid = DataLoader(Data(), batch_size=99)
train = DataLoader(Data(), batch_size=6, drop_last=True)
for x, y in tqdm(enumerate(train)):
    engine.backward(mse(engine(x), y))
for x, y in valid:
    print(engine(x))
"""
    read(HEAD + body, job=job)
    assert job.value("loader.batch_size") == 6
    assert job.value("dataset.drop_last") is True


def test_the_plain_branch_beside_deepspeed_is_told_apart() -> None:
    from dsaccum_helpers.mismatches.windows import live

    body = """
for i, (x, y) in enumerate(loader):
    loss = mse(engine(x), y)
    if args.deepspeed:
        engine.backward(loss)
        engine.step()
    else:
        loss.backward()
        if i % 4 == 0:
            optimizer.step()
"""
    assert [event.kind for event in live(read(HEAD + body))] == ["forward", "backward", "step"]


def test_a_dict_literal_becomes_a_config_with_its_places() -> None:
    job = Job()
    code = 'import deepspeed\nDS = {\n    "train_batch_size": 8,\n    "bf16": {"enabled": True},\n}\n'
    read(code + "engine = deepspeed.initialize(model=None, config=DS)[0]\n", job=job)
    assert job.config is not None
    assert job.config.values == {"train_batch_size": 8, "bf16": {"enabled": True}}
    assert job.config.source("train_batch_size")[:3] == ("a.py", 3, 5)


def test_notebook_places_name_the_cell() -> None:
    cells = ["%matplotlib inline\n" + HEAD, "for x in loader:\n    engine.backward(engine(x))\n    engine.step()"]
    text = json.dumps({"cells": [{"cell_type": "code", "source": cell.splitlines(True)} for cell in cells]})
    program = read(text, names=("n.ipynb",))
    assert [event.source[1::2] for event in program.events] == [(2, "cell 2"), (2, "cell 2"), (3, "cell 2")]


@pytest.mark.parametrize(
    "text",
    [
        "def f(:\n",
        "x = 1\n\x00",
        "(" * 5000,
        "if x:\n" * 5,
        '{"cells": 3}',
        '{"cells": [{"cell_type": "code"}]}',
    ],
)
def test_what_does_not_parse_is_one_line(text: str) -> None:
    error = failure(text)
    assert error is not None
    assert "\n" not in error
    assert "a.py" in error
    assert "Smallest fix" in error


@pytest.mark.parametrize("text", ["x = " + "-" * 20000 + "1", "x = " + "1 + " * 20000 + "1"])
def test_what_is_nested_too_deeply_ends(text: str) -> None:
    error = failure(text)  # how deep Python reads depends on its version
    assert error is None or "a.py" in error


def test_a_line_is_ignored_where_python_counts_it() -> None:
    job = Job()
    read("x = 1\n\x0c\ny = 2  # dsaccum: ignore[manual-accumulation]\n", job=job)
    assert job.ignored == {("a.py", 3): {"manual-accumulation"}}


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    return f(f(x))\nf(f)\n",
        "class A(A): pass\nA().b.c.d()\n",
        "class A: pass\nclass B(A): pass\nA.__bases__ = (B,)\nB()\n",
        "class A0: pass\nclass B0: pass\n"
        + "".join(f"class {kind}{n}(A{n - 1}, B{n - 1}): pass\n" for n in range(1, 60) for kind in "AB")
        + "A59().none\n",
        "x = x\nfor x in x: x = x[x](x)\n",
        "import a\nimport b\nfrom a import *\n",
        "a = []\na.append(a)\nprint(a, sum(a), len(a), {**{}}, *a)\n",
        "lambda *a, **k: (a, k)\n(lambda: 0)()\n",
        "def g():\n    yield from g()\nfor x in g(): pass\n",
        "match x:\n    case [1, *rest] if rest: pass\n    case _: pass\n",
        "try:\n    pass\nexcept* ValueError:\n    pass\n",
        "async def f():\n    async with a as b:\n        async for c in d:\n            await c\n",
        "x = 10 ** 10 ** 10\ny = 1 // 0\nz = 1e308 * 1e308\nq = 2 ** 99999\n",
        "global x\nnonlocal_ = 3\ndel x\nassert x, y\n",
        "with open('f') as f, g() as (a, b): f[a:b, ...] = b\n",
        "@property\n@undefined(3)\ndef f(a, /, b=1, *c, d=2, **e): return f\nf()\n",
    ],
)
def test_odd_programs_end(text: str) -> None:
    read(text, "import a\nfrom a import f\n")


SOURCES = [
    text
    for path in sorted(CASES.glob("*script*.json"))[::3]
    for name, text in json.loads(path.read_text())["files"].items()
    if name.endswith(".py") and isinstance(text, str)
]


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10**9))
def test_mutilated_scripts_break_nothing(seed: int) -> None:
    chance = random.Random(seed)
    lines = chance.choice(SOURCES).splitlines()
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(len(lines))
        change = chance.choice(("drop", "double", "swap", "other", "cut"))
        if change == "drop" and len(lines) > 2:
            del lines[place]
        elif change == "double":
            lines.insert(place, lines[place])
        elif change == "swap":
            other = chance.randrange(len(lines))
            lines[place], lines[other] = lines[other], lines[place]
        elif change == "other":
            lines[place] = chance.choice(chance.choice(SOURCES).splitlines())
        else:
            lines[place] = lines[place][: chance.randrange(len(lines[place]) + 1)]
    job = Job(processes=2)
    try:
        script.read([("a.py", "\n".join(lines))], job)
    except JobError:
        return
    from dsaccum_helpers.doctor import diagnose

    diagnose(job)


def test_thousands_of_steps_take_seconds() -> None:
    from dsaccum_helpers.doctor import diagnose

    job = Job(processes=2)
    started = time.process_time()
    body = "    engine.backward(engine(x))\n    engine.step()\n" * 2500
    read(HEAD + "for x in loader:\n" + body, job=job)
    diagnose(job)
    assert time.process_time() - started < 4


def test_a_program_that_calls_itself_over_and_over_is_cut_short() -> None:
    functions = [f"def f{n}(e, x):\n    f{n - 1}(e, x)\n    f{n - 1}(e, x)\n" for n in range(1, 40)]
    code = HEAD + "def f0(e, x):\n    e.backward(e(x))\n" + "".join(functions) + "f39(engine, loader)\n"
    assert len(read(code).events) < 100_000
