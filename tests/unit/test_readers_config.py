"""A DeepSpeed config in any dress: where each key stands, what each reader says, what is no config at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsaccum_helpers.job import Config, Job, JobError
from dsaccum_helpers.readers import config, fences, files, kinds, read
from dsaccum_helpers.readers.positions import scan

COMMENTED = """\
// the batch
{
  train_batch_size: 64   # for 8 devices
  /* one
     more */ 'gradient_accumulation_steps': 4,
  "zero_optimization": {"stage": 2,},
  note: '''
    two
    lines'''
  "tags": ["a", {"deep": 1}, {"deep": 2}],
}
"""


def job_of(*given: Any, **options: Any) -> Job:
    job = Job(**options)
    read(given, job)
    return job


def only(text: str | bytes, name: str = "ds_config.json") -> Config:
    job = job_of((name, text))
    assert len(job.configs) == 1, job.unreadable
    assert not job.unreadable
    return job.configs[0]


def test_every_key_has_its_line_and_column() -> None:
    found = only('{\n  "train_batch_size": 64,\n\t"zero_optimization": {\n    "stage": 2}}')
    assert found.source("train_batch_size")[:3] == ("ds_config.json", 2, 3)
    assert found.source("zero_optimization", "stage")[:3] == ("ds_config.json", 4, 5)
    assert found.source("zero_optimization", "overlap_comm")[:3] == ("ds_config.json", 3, 2)
    assert (found.strict, found.hjson, found.duplicates) == (None, None, [])


def test_hjson_is_read_as_deepspeed_reads_it() -> None:
    found = only(COMMENTED)
    assert found.get("train_batch_size") == 64
    assert found.get("zero_optimization", "stage") == 2
    assert found.strict is not None
    assert found.hjson is None
    places = {path: place[0] for path, place in found.places.items()}
    assert places == {
        ("train_batch_size",): 3,
        ("gradient_accumulation_steps",): 5,
        ("zero_optimization",): 6,
        ("zero_optimization", "stage"): 6,
        ("note",): 7,
        ("tags",): 10,
        ("tags", "1", "deep"): 10,
        ("tags", "2", "deep"): 10,
    }


def test_a_root_without_braces_is_a_config_under_a_configs_name() -> None:
    found = only("train_batch_size: 64\nzero_optimization: {stage: 1}\n", "ds.hjson")
    assert found.get("zero_optimization", "stage") == 1
    assert found.places[("zero_optimization",)] == (2, 1)


def test_keys_that_stand_twice() -> None:
    found = only('{"fp16": {"enabled": true,\n"enabled": false}, "train_batch_size": 8}')
    assert found.duplicates == [(("fp16", "enabled"), 2, 1)]
    assert found.hjson is not None
    assert "Duplicate keys in DeepSpeed config: ['enabled']" in found.hjson[0]
    assert found.strict is None
    assert found.get("fp16", "enabled") is False


def test_a_template_is_no_strict_json() -> None:
    found = only('{"train_batch_size": 32,\n "train_micro_batch_size_per_gpu": BATCH_SIZE_PER_GPU\n}')
    assert found.strict == ("Expecting value", 2, 36)
    assert found.get("train_micro_batch_size_per_gpu") == "BATCH_SIZE_PER_GPU"


@pytest.mark.parametrize("mark", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings_are_read_and_said(mark: str) -> None:
    found = only('{"train_batch_size": 8, "fp16": {"enabled": true}}'.encode(mark))
    assert found.get("train_batch_size") == 8
    assert found.places[("train_batch_size",)] == (1, 2)
    assert found.strict is not None
    assert (found.hjson is None) == (mark == "utf-8-sig")


def test_line_ends_of_windows_count_once() -> None:
    assert only(b'{\r\n"train_batch_size": 8,\r\n"fp16": {}}').places[("fp16",)] == (3, 1)


def test_a_printed_dict_is_a_config_of_a_log() -> None:
    found = only("{'train_batch_size': 64, 'fp16': {'enabled': True}, 'amp': None}", "out.txt")
    assert (found.kind, found.get("fp16", "enabled")) == ("log", True)
    job = job_of(("ds_config.json", "{'train_batch_size': 64, 'fp16': {'enabled': True}}"))
    assert not job.configs
    assert "true" in job.unreadable[0].remedy


@pytest.mark.parametrize(
    "text",
    [
        '{"train_batch_size": 64, "gradient_accumulation_',
        '{"train_batch_size": 64,\n "gradient_accumulation_steps": }',
        '{"train_batch_size": 64}}',
        '["train_batch_size", 64]',
        '{"train_batch_size": ' + "9" * 5000 + "}",
        '{"train_batch_size": 8, "a": ' + '{"a":' * 100_000,
        '{"train_batch_size": 8, "a": ' + "[" * 100_000,
        "{" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        "<html><title>404</title></html>",
        "42",
        '"train_batch_size"',
    ],
)
def test_recognisable_but_unreadable(text: str) -> None:
    job = job_of(("conf/ds_config.json", text))
    assert not job.configs
    (found,) = job.unreadable
    assert "conf/ds_config.json" in found.message
    assert found.remedy
    assert len(found.message) < 400
    assert found.source.file == "conf/ds_config.json"


def test_a_config_that_is_cut_off_is_recognised_without_its_name() -> None:
    assert job_of(("upload", '{"train_batch_size": 64, "gradient_accumulation_')).unreadable


def test_odd_numbers_are_values() -> None:
    found = only('{"train_batch_size": NaN, "train_micro_batch_size_per_gpu": 1e400, "fp16": {}}')
    assert found.get("train_micro_batch_size_per_gpu") == float("inf")
    assert found.hjson is not None  # DeepSpeed's own reader takes NaN for text


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"model": {"n": 1}, "deepspeed": {"train_batch_size": 8}}, ("deepspeed",)),
        ({"trainer": {"strategy": {"config": {"zero_optimization": {"stage": 2}}}}}, ("trainer", "strategy", "config")),
        ({"output_dir": "o", "per_device_train_batch_size": 1, "deepspeed": {"fp16": {}, "train_batch_size": 8}}, ()),
    ],
)
def test_embedded_configs(values: dict[str, Any], path: tuple[str, ...]) -> None:
    found = only(json.dumps(values, indent=1), "all.json")
    assert found.kind == "embedded"
    assert found.text is None
    assert all(place[0] > 1 for place in found.places.values())
    assert found.places
    inner = values
    for key in path:
        inner = inner[key]
    assert not path or found.values == inner


def test_what_merely_resembles_a_config() -> None:
    assert not job_of(("config.json", '{"architectures": ["A"], "model_type": "llama"}')).configs
    assert not job_of(("metrics.json", '{"step": 1, "loss": 2}\n{"step": 2, "loss": 1}\n')).unreadable
    misspelt = only('{"train_batch_sizes": 8, "micro_batch_per_gpu": 2}')
    assert misspelt.get("train_batch_sizes") == 8
    assert only('{"train_batch_size": 64, "per_device_train_batch_size": 4, "zero_optimization": {}}').kind == "file"


def test_a_dict_is_copied() -> None:
    given = {"train_batch_size": 8, "zero_optimization": {"stage": 1}}
    job = job_of(given)
    job.set("zero_stage", 3)
    assert given["zero_optimization"] == {"stage": 1}
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(JobError, match="nested"):
        job_of(deep)


def test_a_config_that_a_command_names_is_read_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "ds.json").write_text('{"train_batch_size": 16}')
    (tmp_path / "run.sh").write_text("deepspeed --num_gpus 2 train.py --deepspeed_config conf/ds.json\n")
    job = job_of(str(tmp_path / "run.sh"))
    assert [found.file for found in job.configs] == [str(tmp_path / "conf" / "ds.json")]
    monkeypatch.chdir(tmp_path)
    upload = job_of(("run.sh", (tmp_path / "run.sh").read_text()))
    assert not upload.configs, "an upload says nothing of files on this machine"
    (tmp_path / "conf" / "ds.json").write_text('{"train_batch_size":')
    assert job_of("run.sh").unreadable


def test_a_posted_question_is_taken_apart() -> None:
    text = (
        'My config:\n\n```json\n{\n  "train_batch_size": 32\n}\n```\n'
        "and\n```yaml\nper_device_train_batch_size: 4\noutput_dir: o\n```\n```python\nfor x in ...:\n```\n"
    )
    job = job_of(("issue.md", text))
    assert job.configs[0].places == {("train_batch_size",): (5, 3)}
    fact = job.fact("trainer.per_device_train_batch_size")
    assert fact is not None
    assert (fact.value, fact.source.line) == (4, 10)


@pytest.mark.parametrize("text", ["", " \n\t\n", "{}"])
def test_the_scanner_takes_little(text: str) -> None:
    assert scan(text)[0] == []


def test_reading_a_config_in_json_loads_next_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"train_batch_size": 64, "zero_optimization": {"stage": 2}}')
    code = (
        "import json, re, os, sys; before = set(sys.modules)\n"
        "from dsaccum_helpers.job import Job\nfrom dsaccum_helpers.readers import read\n"
        f"job = Job(); read([{str(tmp_path / 'ds.json')!r}], job); assert job.configs\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    out = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    outside = [name for name in out.split() if not name.startswith("dsaccum_helpers")]
    assert not set(outside) & {"hjson", "yaml", "typing", "dataclasses", "ast", "pathlib", "inspect", "argparse"}
    readers = {name for name in out.split() if name.startswith("dsaccum_helpers.readers.")}
    few = ("config", "files", "following", "positions", "vocabulary")
    assert readers == {f"dsaccum_helpers.readers.{name}" for name in few}


def test_a_large_config_is_read_fast() -> None:
    values = {"train_batch_size": 8, **{f"key{number}": {"a": [1, 2, {"b": number}]} for number in range(20_000)}}
    parsed = config.parse(json.dumps(values, indent=1))
    assert len(parsed.places) == 60_001


def test_cells_of_a_notebook() -> None:
    sources = [
        '%%writefile ds_config.json\n{\n  "train_batch_size": 8\n}\n',
        ["x = 1\n", "!deepspeed --num_gpus 2 train.py \\\n", "  --deepspeed_config ds_config.json\n"],
        "%%bash\nexport WORLD_SIZE=4\npython plain.py\n",
    ]
    cells = [{"cell_type": "code", "source": source, "outputs": []} for source in sources]
    job = job_of(("run.ipynb", json.dumps({"cells": cells, "nbformat": 4, "metadata": {}})))
    assert job.config is not None
    assert job.config.source("train_batch_size")[:3] == ("run.ipynb", 3, 3)
    assert job.value("processes") == 2
    assert job.launches[0].source.line == 2
    assert job.value("environment.WORLD_SIZE") == 4


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("deepspeed --num_gpus 4 train.py", "launch"),
        ("$ CUDA_VISIBLE_DEVICES=0,1 python3 train.py --x", "launch"),
        ("uv run accelerate launch --num_processes 2 train.py", "launch"),
        ("python -m torch.distributed.run --nproc_per_node=4 train.py", "launch"),
        ("worker-1 slots=4\nworker-2 slots=4", "launch"),
        ("#SBATCH --nodes=2\nsrun python train.py", "launch"),
        ("import deepspeed\nengine = deepspeed.initialize()[0]\n", "script"),
        ("import x\n# ValueError: none\nx.go()\n", "script"),
        ("ds_config = {'train_batch_size': 8}\n", "script"),
        ("Traceback (most recent call last):\n  File 'a.py'\nValueError: no", "log"),
        ("[2024-01-01 10:00:00,000] [INFO] [launch.py:1] deepspeed --num_gpus 2 train.py", "log"),
        ("$ deepspeed --num_gpus 2 train.py\nTraceback (most recent call last):\nAssertionError: x", "log"),
        ("just words", "log"),
        ("distributed_type: DEEPSPEED\nnum_processes: 4", "settings"),
        ("--per_device_train_batch_size 4 \\\n --gradient_accumulation_steps 8", "settings"),
        ("deepspeed==0.15.0\ntorch==2.4.0", "settings"),
    ],
)
def test_kinds_are_told_apart_by_content(text: str, kind: str) -> None:
    assert kinds.kind_of(files.document("standard input", text.encode(), None)) == kind


def test_a_command_before_a_log_is_read_too() -> None:
    text = "$ deepspeed --num_gpus 2 train.py \\\n  --deepspeed_config ds.json\nTraceback (most recent call last):\n"
    job = job_of(("out.log", text))
    assert job.value("processes") == 2
    assert [fact.value for fact in job.references][:1] == ["ds.json"]


def test_a_loop_of_its_own_outweighs_names_of_arguments() -> None:
    command = "accelerate launch --num_processes 2 train.py --per_device_train_batch_size 4 --output_dir o\n"
    script = "from accelerate import Accelerator\na = Accelerator()\nm, o = a.prepare(m, o)\na.backward(m(x))\n"
    assert job_of(("run.sh", command)).framework == "transformers"
    assert job_of(("run.sh", command), ("train.py", script)).framework == "accelerate"


@pytest.mark.parametrize(
    ("text", "says", "remedy"),
    [
        ('{"train_batch_size": 64, "gradient_accumulation_', "ends before", "copy the whole file"),
        ('{"train_batch_size": 64,\n', "ends before", "copy the whole file"),
        ('{"train_batch_size": 4 "fp16": {}}', "delimiter", "line 1, column 24"),
        ('{\n "train_batch_size": auto,\n "fp16": {"enabled": auto},\n}', "Expecting value", 'write "auto" in quotes'),
        ('{"train_batch_size": 4, "fp16": {"enabled": True}}', "Expecting value", "true, false and null"),
        ('{"train_batch_size": 4}\n{"train_batch_size": 8}', "Extra data", "after the object, from line 2"),
        ('```json\n{"train_batch_size": 4}\n```\n', "Expecting value", "before the object"),
        ("null", "it is null", "the object in braces"),
        ('[{"train_batch_size": 4}]', "it is a list", "the object in braces"),
        ('{\n // one\n "train_batch_size": 4,\n "fp16": {"a": x}, \n}', "Bad key name", "mend line"),
    ],
)
def test_the_remedy_fits_the_fault(text: str, says: str, remedy: str) -> None:
    (found,) = job_of(("ds.json", text)).unreadable
    assert says in found.message
    assert remedy in found.remedy


def test_a_dict_that_holds_a_config() -> None:
    job = job_of({"deepspeed": {"train_batch_size": 8}, "lr": 1})
    assert job.value("train_batch_size") == 8
    assert job_of({"distributed_type": "DEEPSPEED", "num_processes": 2}).value("processes") == 2


def test_the_state_of_a_checkpoint() -> None:
    job = job_of(
        ("trainer_state.json", '{"global_step": 100, "train_batch_size": 4, "log_history": [], "max_steps": 9}')
    )
    assert not job.configs
    assert job.value("checkpoint.global_step") == 100
    assert job.value("checkpoint.train_micro_batch_size_per_gpu") == 4


def test_blocks_of_one_question_are_one_script() -> None:
    text = "Mine:\n```python\nimport deepspeed\nN = 4\n```\nand\n```python\nengine = deepspeed.initialize()[0]\n```\n"
    documents = [part for part in fences.blocks(files.document("q.md", text.encode(), None)) if part.ending == ".py"]
    ((name, joined),) = kinds._joined(documents)
    assert name == "q.md"
    assert joined.split("\n")[2:8] == ["import deepspeed", "N = 4", "", "", "", "engine = deepspeed.initialize()[0]"]
    assert job_of(("q.md", text)).programs


def test_data_in_json_is_no_config() -> None:
    with pytest.raises(JobError, match="too long for a config"):
        job_of(("train.json", "[" + '"a", ' * 1_000_000 + "1]"))


def test_a_question_without_fences() -> None:
    said = "I run\n\n    deepspeed --num_gpus 4 train.py --deepspeed_config ds.json\n\nand get AssertionError: Check "
    said += "batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * "
    job = job_of(("q.md", said + "world_size 8 != 4 * 1 * 4\n"))
    assert job.value("processes") == 4
    assert job.launches[0].source.line == 3
    assert job.said("product-assertion")
