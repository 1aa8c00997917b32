"""Whatever is given: a job, or one clear line; never another exception, never a hang."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import string
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsaccum_helpers.doctor import check
from dsaccum_helpers.job import Job, JobError, Source
from dsaccum_helpers.readers import config, read, yaml_text
from dsaccum_helpers.readers.arguments import from_words
from dsaccum_helpers.readers.positions import scan
from dsaccum_helpers.readers.script import state

BOUNDED = settings(max_examples=150, deadline=2000, suppress_health_check=[HealthCheck.too_slow])
NAMES = st.sampled_from(["a.json", "a.yaml", "a.txt", "upload", "a.md", "requirements.txt", "a.sh", "a.hjson"])
#: Texts that look like what readers wait for.
PIECES = st.sampled_from(
    [
        *"{}[]:,\"'#-\n \t\\$&*!|>%@`=",
        "'''",
        "```\n",
        "```json\n",
        "//",
        "/*",
        "*/",
        "train_batch_size",
        '"train_batch_size": 64',
        "gradient_accumulation_steps: 4\n",
        "deepspeed: ",
        "num_processes: 4\n",
        "distributed_type: DEEPSPEED\n",
        "deepspeed_config:\n  ",
        "&a [*a, *a]",
        "<<: *a",
        "!!python/object:os.system x",
        "2001-99-99",
        "12:30:99",
        "True",
        "None",
        "NaN",
        "1e999",
        "9" * 400,
        "0x",
        "\ufeff",
        "\x85",
        "\u2028",
        "--per_device_train_batch_size=4 ",
        "deepspeed --num_gpus 2 train.py ",
        "Traceback (most recent call last):\n",
        "import os\n",
        "deepspeed==0.15.0\n",
        "trainer:\n  devices: 4\n",
    ]
)
TEXTS = st.one_of(st.lists(PIECES, max_size=25).map("".join), st.text(max_size=80))
KEYS = """
train_batch_size zero_optimization deepspeed deepspeed_config trainer strategy args dependencies fp16
distributed_type num_processes output_dir num_generations devices num_nodes gpus init_args config cells
nbformat accumulate_grad_batches deepspeed_config_file tensor_model_parallel_size trl stage
"""
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS.split()),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


def survives(*documents: Any) -> Job | None:
    """The job, or None where one line says why there is none."""
    job = Job()
    said = ""
    try:
        read(documents, job)
    except JobError as error:
        said = str(error)
    assert "\n" not in said
    assert not said or "Smallest fix" in said
    return None if said else job


@BOUNDED
@given(NAMES, TEXTS)
def test_any_text(name: str, text: str) -> None:
    survives((name, text))


@BOUNDED
@given(NAMES, st.binary(max_size=200))
def test_any_bytes(name: str, content: bytes) -> None:
    survives((name, content))


@BOUNDED
@given(VALUES, st.sampled_from(["a.json", "a.yaml", "upload"]))
def test_any_values(values: Any, name: str) -> None:
    survives((name, json.dumps(values)))
    if isinstance(values, dict):
        survives(values)


@BOUNDED
@given(st.dictionaries(st.text(max_size=6), VALUES, max_size=6), st.integers(0, 2))
def test_places_are_those_of_the_text(values: dict[str, Any], indent: int) -> None:
    text = json.dumps(values, indent=indent or None)
    lines = text.split("\n")
    found = scan(text)[0]

    def count(node: Any) -> int:
        if isinstance(node, dict):
            return len(node) + sum(map(count, node.values()))
        return sum(map(count, node)) if isinstance(node, list) else 0

    assert len(found) == count(values)
    for key in found:
        assert lines[key.line - 1][key.column - 1 :].startswith(json.dumps(key.path[-1]))


@BOUNDED
@given(TEXTS)
def test_parsers_by_themselves(text: str) -> None:
    config.parse(text)
    scan(text)
    with contextlib.suppress(yaml_text.YamlError):
        yaml_text.load(text)


@BOUNDED
@given(st.lists(st.one_of(PIECES, st.text(max_size=12)), max_size=12))
def test_any_words(words: list[str]) -> None:
    from_words(words, Job(), Source("run.sh", 1))


@BOUNDED
@given(st.text(string.printable, max_size=60))
def test_what_the_strict_reader_takes_is_what_it_gives(text: str) -> None:
    try:
        values = json.loads(text)
    except ValueError:
        return
    assert repr(config.parse(text).values) == repr(values)


def laughs() -> str:
    """A billion, in eight lines."""
    names = list(zip("abcdefgh", "bcdefghi", strict=True))
    lines = [f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in names]
    return "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(lines) + "num_processes: 1\n"


HOSTILE = {
    "laughs": laughs(),
    "lists": "num_processes: " + "[" * 50_000,
    "maps": "num_processes: " + "{a: " * 50_000,
    "dashes": "num_processes:\n" + "- " * 50_000 + "1",
    "stairs": "num_processes:\n" + "".join(" " * depth + "a:\n" for depth in range(2_000)),
    "itself": "num_processes: &a\n  b: *a\n",
    "digits": "num_processes: " + "9" * 10_000,
    "power": "num_processes: 1e" + "9" * 100,
    "objects": '{"train_batch_size": ' * 50_000,
    "escapes": '{"train_batch_size": "' + "\\" * 100_000,
    "signs": "{'train_batch_size': " + "-" * 100_000 + "1}",
    "parentheses": "{'train_batch_size': " + "(" * 100_000,
    "commas": '{"train_batch_size": 1' + "," * 100_000,
    "comments": '{"train_batch_size": ' + "/*" * 100_000,
    "quotes": '{"train_batch_size": ' + "'''" * 100_001,
    "spaces": "{train_batch_size" + " " * 200_000 + "x",
    "infinite": '{"train_batch_size": 1e400}',
    "fences": "```json\n" * 5_000,
    "keys": "train_batch_size\n" * 50_000,
    "pins": "deepspeed==" * 20_000,
    "line": "-" * 200_000,
    "words": "a " * 200_000,
    "settings": "A=1 " * 50_000,
    "errors": "Error-" * 40_000,
    "percents": "9" * 200_000,
    "gap": "a" + " " * 200_000 + "!",
    "path": "a/" * 100_000 + " x",
    "addresses": "a@b.c:" * 40_000,
    "options": "python " + "-a " * 60_000,
    "data": '{"a": [' + "1, " * 2_000_000,
    "hjson": "{\n" + "train_batch_size: 1\n" * 100_000,
}


@pytest.mark.parametrize("name", ["a.yaml", "a.json", "a.txt", "a.md", "a.sh", "upload"])
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_are_read_at_once(name: str, text: str) -> None:
    start = time.monotonic()
    survives((name, text))
    assert time.monotonic() - start < 20


def test_what_is_no_file_is_said_in_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "empty.json").write_text(" \n")
    (tmp_path / "model.bin").write_bytes(bytes(range(256)) * 10)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        names = [
            "fifo",
            "loop",
            "empty.json",
            "model.bin",
            "s",
            "missing.json",
            ".",
            "empty.json/x",
            "x" * 5000,
            "a\0b",
        ]
        for name in names:
            with pytest.raises(JobError, match="Smallest fix") as caught:
                read([tmp_path / name], Job())
            assert "\n" not in str(caught.value)
            assert re.search(re.escape(name[:5]) if "\0" not in name else "a", str(caught.value))
    for other in ("/dev/null", "/dev/zero", 3, None, b"\xff\xfe"):
        with pytest.raises(JobError):
            read([other], Job())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permission_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text("{}")
    path.chmod(0)
    with pytest.raises(JobError, match="chmod"):
        read([path], Job())


def test_too_large_is_said_before_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsaccum_helpers.readers.files.LARGEST", 1000)
    (tmp_path / "big.log").write_text("x" * 2000)
    with pytest.raises(JobError, match="larger than"):
        read([tmp_path / "big.log"], Job())


def test_standard_input_and_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"train_batch_size": 8}')))
    job = Job()
    read(["-"], job)
    assert job.configs[0].file == "standard input"
    end, begin = os.pipe()
    threading.Thread(target=lambda: (os.write(begin, b'{"train_batch_size": 4}'), os.close(begin))).start()
    job = Job()
    read([f"/dev/fd/{end}"], job)
    os.close(end)
    assert job.value("train_batch_size") == 4


DIGITS = "9" * 5000  # more than Python turns into a number
INITIALIZED = 'import deepspeed, torch\nengine, _, loader, _ = deepspeed.initialize(model=net, config="ds.json")\n'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("v.txt", "# packages in environment at /x:\n#\n"),
        ("run.sh", "deepspeed --include a:² t.py\n"),
        ("run.sh", f"deepspeed --include a:{DIGITS} t.py\n"),
        ("run.sh", f"#SBATCH --nodes={DIGITS}\n#SBATCH --ntasks-per-node=²\nsrun python t.py\n"),
        ("run.sh", f"mpirun -H a:²,b:{DIGITS} python t.py\n"),
        ("x.log", f"[INFO] nnodes={DIGITS}, num_local_procs={DIGITS}\n"),
        ("x.log", f"using world size: 4, tensor-model-parallel-size: {DIGITS}, x\n"),
        ("x.log", f"All distributed processes registered. Starting with {DIGITS} processes\n"),
        ("x.log", f"generation_batch_size (6) must be divisible by num_generations ({DIGITS})\n"),
        ("x.log", f"world_size {DIGITS} != 4 * {DIGITS} * 2 batch related gradient_acc_step\n"),
        ("a.py", INITIALIZED + "x = loader[1e999]\n"),
        ("a.py", INITIALIZED + f"n = 1{'0' * 400}\nx, y, z = n / 2, 1 / n, n * 0.5\nengine.backward(x / n)\n"),
        ("a.py", INITIALIZED + "n = 1e200 ** 2\n"),
        ("a.py", INITIALIZED + "for x in torch.utils.data.DataLoader(d, batch_size=1e999):\n    engine.backward(x)\n"),
        ("a.ipynb", json.dumps({"cells": [{"cell_type": "code", "source": "x = 'a\u2028b'\n"}], "nbformat": 4})),
        (
            "a.ipynb",
            json.dumps({"cells": [{"cell_type": "code", "source": "%%file a.txt\nall words\n"}], "nbformat": 4}),
        ),
    ],
)
def test_odd_numbers_and_letters(name: str, text: str) -> None:
    assert survives((name, text)) is not None


def test_a_name_of_two_lines_is_said_in_one() -> None:
    with pytest.raises(JobError, match=r"^a\?b\.json is empty\.") as caught:
        read([("a\nb.json", "")], Job())
    assert "\n" not in str(caught.value)


def test_a_script_that_is_cut_short_is_not_called_right(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    lines = [
        "import deepspeed",
        "config = {'train_micro_batch_size_per_gpu': 1, 'gradient_accumulation_steps': 4}",
        "engine, _, _, _ = deepspeed.initialize(model=model, config=config)",
        "for batch in loader:",
        "    loss = engine(batch)",
        *(f"    print({number})" for number in range(40)),
        "    engine.backward(loss / 4)",
        "    engine.step()",
    ]
    path.write_text("\n".join(lines))
    assert check(path, processes=1).codes[0] == "loss-divided-twice"
    monkeypatch.setattr(state, "BUDGET", 100)
    report = check(path, processes=1)
    assert report.verdict == "incomplete"
    (line,) = re.findall(r"after \S*train\.py line (\d+)\?", "".join(report.missing))
    assert 5 < int(line) < 46
