"""Logs and tracebacks in any shape: the same words are the same event."""

from __future__ import annotations

import textwrap
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.job import BATCH_KEYS, Event, Job, Source
from dsaccum_helpers.readers import log

FRAMES = """Traceback (most recent call last):
  File "/w/train.py", line 10, in main
    engine = deepspeed.initialize(model=m, config=c)
  File "/x/deepspeed/runtime/config.py", line 930, in _batch_assertion
    assert train_batch == micro_batch * grad_acc * self.world_size, (
"""
WORDS = (
    "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
    "gradient_acc_step * world_size 256 != 4 * 8 * 1"
)


def job_of(text: str) -> Job:
    job = Job()
    log.read(text, "x.log", job)
    return job


def only(text: str, kind: str) -> Event:
    events = job_of(text).said(kind)
    assert len(events) == 1, events
    return events[0]


def each(prefix: str, text: str = FRAMES + WORDS) -> str:
    return "\n".join(prefix + line for line in text.split("\n"))


def hard(width: int) -> str:
    return "\n".join(WORDS[at : at + width] for at in range(0, len(WORDS), width))


PREFIXES = [
    "",
    "[rank3]: ",
    "[rank3]:",
    "[Rank 3] ",
    "rank3: ",
    "12: ",
    " 2: ",
    "[1,3]<stderr>:",
    "[1,mpirank:3]<stderr>:",
    "worker-1: ",
    "node017: ",
    "10.0.0.12: ",
    "(PolicyModelRayActor pid=3312, ip=10.0.0.1) ",
    "(train pid=99) ",
    "(worker1, rank=1, pid=2345, ip=10.1.1.1) ",
    "[default0]:",
    "[2024-01-02 10:11:12,123] [ERROR] [launch.py:1:main] ",
    "2024-05-01T10:11:12.123456789Z ",
    "2024-05-01T10:11:12.123Z stderr F ",
    "trainer-1  | ",
    "0| ",
    "E   ",
    "> ",
    "\t",
    "E0101 12:00:00.000 1234 api.py:12] ",
    "[ERROR|trainer.py:22] 2024-03-24 10:02:11,337 >> ",
    "[rank: 0] ",
    "2024-05-01 10:00:00.123 | ERROR    | __main__:<module>:12 - ",
    "05/01/2024 10:00:00 - ERROR - __main__ - ",
    "ERROR:root:",
    "[2024-05-01 10:00:00][trainer][INFO] - ",
    "10:11:12 ",
    "\x1b[31m[rank0]:\x1b[0m ",
]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("width", [0, 80, 60])
def test_prefixes_and_wrapped_lines(prefix: str, width: int) -> None:
    words = textwrap.fill(WORDS, width) if width else WORDS
    event = only(each(prefix, FRAMES + words), "product-assertion")
    assert [event.values[name] for name in ("train", "micro", "steps", "world")] == [256, 4, 8, 1]
    assert {"train.py", "main", "deepspeed.initialize", "config.py", "_batch_assertion"} <= set(event.values["through"])
    assert event.source[:2] == ("x.log", 6)


BOX = "\u256d\u2500\u2500 Traceback (most recent call last) \u2500\u2500\u256e\n"


@pytest.mark.parametrize(
    "text",
    [
        hard(80),
        hard(37),
        hard(100),
        textwrap.fill(WORDS, 25),
        BOX + "\n".join(f"\u2502 {line:<60} \u2502" for line in textwrap.wrap(WORDS, 60)),
        (FRAMES + WORDS).replace("\n", "\r\n"),
        "  0%|   | 0/10 [00:00<?]\r 10%|\r" + FRAMES + WORDS + "\r\n",
        "\x1b[31mAssertionError\x1b[0m: " + WORDS[16:90] + "\x1b[1m" + WORDS[90:] + "\x1b[0m",
        '{"log":"Traceback (most recent call last):\\n' + WORDS + '\\n","stream":"stderr"}',
        WORDS.replace("* 1", "* 1.0"),
        WORDS.replace(" train_batch_size is", " Train_batch_size is"),
        WORDS.replace("world_size 256", "world_size256"),
        WORDS.replace("*", "\\*"),
        WORDS.replace("* ", ""),
        WORDS + " [repeated 7x across cluster]",
        '{"message": {"message": "' + WORDS + '", "extraInfo": {"py_callstack": "x"}}}',
        "x" * 100_000 + WORDS + "y" * 100_000,
        "gradient_acc_step * world_size\n256 != 4 * 8 * 1",
    ],
)
def test_shapes(text: str) -> None:
    event = only(text, "product-assertion")
    assert [event.values[name] for name in ("train", "micro", "steps", "world")] == [256, 4, 8, 1]


def test_interleaved_ranks_are_one_event() -> None:
    lines = (FRAMES + textwrap.fill(WORDS, 70)).split("\n")
    job = job_of("\n".join(f"[rank{rank}]: {line}" for line in lines for rank in range(4)))
    assert [(event.kind, event.count) for event in job.events] == [("started", 1), ("product-assertion", 4)]
    assert "main" in job.said("product-assertion")[0].values["through"]
    assert job.said("started")[0].values == {"processes": 4, "how": "ranks seen"}
    assert job.value("processes") is None


def test_rich_traceback_with_a_broken_path() -> None:
    text = (
        BOX + "\u2502 /opt/conda/envs/training/lib/python3.10/site-packages/deepspeed/runtime/zero/partition_ \u2502\n"
        "\u2502 parameters.py:660 in __init__                                                     \u2502\n"
        "\u2502 \u2771  660 \u2502   _ds_config = deepspeed.runtime.config.DeepSpeedConfig(config, mpu) \u2502\n"
        "\u2570\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u256f\n" + WORDS
    )
    assert "zero.Init" in only(text, "product-assertion").values["through"]


#: Text, kind, values that must be there.
SAID: list[tuple[str, str, dict[str, Any]]] = [
    (
        "AssertionError: Gradient accumulation steps: 0 has to be greater than 0",
        "positive-assertion",
        {"key": "gradient_accumulation_steps", "value": 0},
    ),
    (
        "AssertionError: Micro batch size per gpu: 0\nhas to be greater than 0",
        "positive-assertion",
        {"key": "train_micro_batch_size_per_gpu", "value": 0},
    ),
    (
        "AssertionError: Train batch size: -4 has to be greater than 0",
        "positive-assertion",
        {"key": "train_batch_size", "value": -4},
    ),
    (
        "AssertionError: Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided",
        "batch-missing",
        {},
    ),
    ("AssertionError: Either train_batch_size or\nmicro_batch_per_gpu needs to be provided", "batch-missing", {}),
    (
        "ValueError: Duplicate keys in DeepSpeed config: ['lr', 'train_batch_size']",
        "duplicate-keys",
        {"keys": ["lr", "train_batch_size"]},
    ),
    (
        "ValueError: Expected a string path to an existing deepspeed config, or a dictionary or a valid base64. "
        "Received: /a/ds.json",
        "config-path",
        {"received": "/a/ds.json"},
    ),
    (
        "ValueError: Expected a string path to an existing deepspeed config, or a\ndictionary, or "
        "a base64 encoded string. "
        "Received:\n./ds.json",
        "config-path",
        {"received": "./ds.json"},
    ),
    (
        "FileNotFoundError: [Errno 2] No such file or directory: 'ds_config.json'",
        "config-path",
        {"received": "ds_config.json"},
    ),
    ("hjson.scanner.HjsonDecodeError: Expecting ',' delimiter: line 3 column 5 (char 20)", "config-parse", {}),
    (
        "ValueError: Please correct the following DeepSpeed config values that mismatch TrainingArguments values:\n"
        "- ds train_micro_batch_size_per_gpu=8 vs hf per_device_train_batch_size=4\n- ds bf16.enabled=True vs hf\n"
        "bf16=False\nThe easiest method is to set these DeepSpeed config values to 'auto'.",
        "trainer-disagrees",
        {
            "rows": [
                ["train_micro_batch_size_per_gpu", 8, "per_device_train_batch_size", 4],
                ["bf16.enabled", True, "bf16", False],
            ]
        },
    ),
    (
        "- ds fp16.enabled=True vs hf fp16|fp16_full_eval+fp16_backend(amp)=False\n",
        "trainer-disagrees",
        {"rows": [["fp16.enabled", True, "fp16|fp16_full_eval+fp16_backend(amp)", False]]},
    ),
    (
        "- ds train_batch_size=8 vs hf train_batch_size (calculated)=128\n- ds a.b=1 vs hf c=2",
        "trainer-disagrees",
        {"rows": [["train_batch_size", 8, "train_batch_size (calculated)", 128], ["a.b", 1, "c", 2]]},
    ),
    (
        "[RANK 0] Gradient accumulation steps mismatch: GradientAccumulationPlugin has 1, DeepSpeed config has 4. "
        "Using DeepSpeed's value.",
        "accumulation-mismatch",
        {"plugin": 1, "config": 4},
    ),
    (
        "Updating DeepSpeed's gradient accumulation steps to 8 from auto.".replace("auto", "2"),
        "accumulation-updated",
        {"to": 8, "before": 2},
    ),
    (
        "the following accelerate config variables will be ignored: ['gradient_clipping',\n'zero_stage'].",
        "fields-ignored",
        {"names": ["gradient_clipping", "zero_stage"]},
    ),
    (
        "AssertionError: no_sync context manager is incompatible with gradient\npartitioning logic of ZeRO stage 2",
        "no-sync",
        {"stage": 2},
    ),
    ("AssertionError: MPI world size 16 does not match torch world size 8", "world-sizes", {"MPI": 16, "torch": 8}),
    (
        "RuntimeError: zero.Init resolved a process group of world_size=1, but the launcher "
        "environment reports WORLD_SIZE=4.",
        "init-alone",
        {"world": 1, "launched": 4},
    ),
    (
        "MisconfigurationException: Do not set `gradient_accumulation_steps` in the DeepSpeed "
        "config as this will be set",
        "lightning-owns",
        {"key": "gradient_accumulation_steps"},
    ),
    ("Gradient accumulation supports only int and dict types", "lightning-type", {}),
    (
        "ValueError: When using DeepSpeed, `accelerate.prepare()` requires you to pass at least "
        "one of training or evaluation "
        "dataloaders with `batch_size` attribute returning an integer value",
        "loader-batch-needed",
        {},
    ),
    (
        "ValueError: The global train batch size (3 x 1) must be evenly divisible by the number of "
        "generations per prompt (8).",
        "generation-batch",
        {"factors": [3, 1], "generations": 8, "product": 3},
    ),
    (
        "ValueError: generation_batch_size (6) must be divisible by num_generations (4).",
        "generation-batch",
        {"factors": [6], "generations": 4},
    ),
    ("deepspeed.elasticity.config.ElasticityIncompatibleWorldSize: World size (6) is not valid", "elasticity", {}),
    (
        "DeepSpeedConfigError: Elastic training has been removed; the 'elasticity' configuration block is no longer",
        "elasticity",
        {},
    ),
    (
        "ValueError: `train_batch_size` not found in kwargs. Please specify `train_batch_size` without `auto`",
        "kwargs-missing",
        {"key": "train_batch_size"},
    ),
    (
        "UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`. In PyTorch 1.1.0",
        "step-before-scheduler",
        {},
    ),
    ("TypeError: '>' not supported between instances of 'str' and 'int'", "type-error", {"key": None}),
    (
        "pydantic.error_wrappers.ValidationError: 1 validation error for DeepSpeedZeroConfig\nreduce_bucket_size\n"
        "  value is not a valid integer (type=type_error.integer)",
        "type-error",
        {"key": "zero_optimization.reduce_bucket_size"},
    ),
    ("ZeroDivisionError: integer division or modulo by zero", "zero-division", {}),
    ("{'loss': 3.2, 'epoch': 0.1}\n{'loss': 3.1}\n{'eval_loss': 1.5}", "losses", {"train": 3.2, "eval": 1.5}),
    (
        "***** Running training *****\n  Num examples = 1,000\n  Num Epochs = 3\n  Instantaneous "
        "batch size per device = 8\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 64\n  Gradient Accumulation steps = 2\n"
        "  Total optimization steps = 48",
        "training-summary",
        {"micro": 8, "train": 64, "steps": 2, "optimization_steps": 48},
    ),
]


@pytest.mark.parametrize(("text", "kind", "values"), SAID, ids=[f"{kind}-{n}" for n, (_, kind, _) in enumerate(SAID)])
@pytest.mark.parametrize("prefix", ["", "[rank1]: ", "2024-01-01 10:00:00,000 - ERROR - m - ", "\u2502 "])
def test_kinds(text: str, kind: str, values: dict[str, Any], prefix: str) -> None:
    job = job_of(each(prefix, text))
    events = job.said(kind)
    assert len(events) == 1, job.events
    assert values.items() <= events[0].values.items()


def type_error(code: str, words: str, file: str = "/x/deepspeed/runtime/config.py", function: str = "f") -> Event:
    return only(
        f'Traceback (most recent call last):\n  File "{file}", line 1, in {function}\n    {code}\nTypeError: {words}\n',
        "type-error",
    )


@pytest.mark.parametrize(
    ("code", "words", "key"),
    [
        ("assert train_batch > 0", "'>' not supported between instances of 'str' and 'int'", "train_batch_size"),
        (
            "assert (micro_batch > 0)",
            "'>' not supported between instances of 'str' and 'int'",
            "train_micro_batch_size_per_gpu",
        ),
        (
            "assert grad_acc > 0",
            "'>' not supported between instances of 'list' and 'int'",
            "gradient_accumulation_steps",
        ),
        (
            "grad_acc = train_batch // micro_batch",
            "unsupported operand type(s) for //: 'str' and 'int'",
            "train_batch_size",
        ),
        (
            "grad_acc = train_batch // micro_batch",
            "unsupported operand type(s) for //: 'int' and 'str'",
            "train_micro_batch_size_per_gpu",
        ),
        (
            "micro_batch //= grad_acc",
            "unsupported operand type(s) for //=: 'int' and 'str'",
            "gradient_accumulation_steps",
        ),
        (
            "self.warmup_num_steps = max(2, warmup_num_steps)",
            "'>' not supported between instances of 'str' and 'int'",
            "scheduler.params.warmup_num_steps",
        ),
        ("if self.clip_grad > 0.:", "'>' not supported between instances of 'str' and 'float'", "gradient_clipping"),
        ("return x + y", "unsupported operand type(s) for +: 'int' and 'str'", None),
    ],
)
def test_type_errors_name_the_key(code: str, words: str, key: str | None) -> None:
    assert type_error(code, words).values["key"] == key


def test_errors_of_other_programs_are_nobodys() -> None:
    other = 'Traceback (most recent call last):\n  File "/w/data.py", line 1, in load\n    a > b\n'
    for words in (
        "TypeError: '>' not supported between instances of 'str' and 'int'",
        "ZeroDivisionError: division by zero",
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.json'",
    ):
        assert job_of(other + words).events == []


STARTED = [
    ("[INFO] [launch.py:163:main] dist_world_size=8", 8),
    ("[INFO] [launch.py:145:main] WORLD INFO DICT: {'a': [0, 1, 2, 3], 'b': [0, 1]}", 6),
    ("[INFO] [launch.py:151:main] nnodes=2, num_local_procs=8, node_rank=0", 16),
    ("cmd = python -u -m deepspeed.launcher.launch --world_info=eyJsb2NhbGhvc3QiOiBbMCwgMV19 --master_port=1 t.py", 2),
    ("initializing deepspeed distributed: GLOBAL_RANK: 0, MEMBER: 1/4", 4),
    ("All distributed processes registered. Starting with 2 processes", 2),
    ("Distributed environment: DEEPSPEED  Backend: nccl\nNum processes: 8\nProcess index: 0", 8),
    ("num_processes=8", 8),
    ("using world size: 16, data-parallel-size: 4, tensor-model-parallel size: 4, pipeline-model-parallel size: 1", 16),
    (
        "Discovered MPI settings of world_rank=0, local_rank=0, world_size=16, master_addr=10.0.0.1, master_port=29500",
        16,
    ),
    ("Process rank: 0, world size: 8, device: cuda:0", 8),
    ("INFO: world_size: 4", 4),
    ("Config mesh_device None world_size = 1", None),
    ("data parallel world size: 4", None),
    ("dp_world_size=4 tensor parallel world_size=2", None),
    ("The checkpoint being loaded used a DP world size of 2 but the current world size is 1.", None),
    ("Tokenizing the dataset (num_processes=8)", None),
    ("[rank7]: hello", None),
    ("Process rank: 3, device: cuda:3, n_gpu: 1", None),
]


@pytest.mark.parametrize(("text", "processes"), STARTED)
def test_processes(text: str, processes: int | None) -> None:
    assert job_of(text + "\n").value("processes") == processes


def test_ranks_that_speak_are_a_lower_bound() -> None:
    assert [event.values["processes"] for event in job_of("Process rank: 3, x\nProcess rank: 0").events] == [4]


@pytest.mark.parametrize(
    ("text", "package", "version"),
    [
        ("[Rank 0] DeepSpeed info: version=0.15.0, git-hash=unknown", "deepspeed", "0.15.0"),
        ("deepspeed info ................... 0.14.4, unknown, unknown", "deepspeed", "0.14.4"),
        ("torch version .................... 2.1.0+cu118", "torch", "2.1.0+cu118"),
        ("deepspeed==0.16.4\ntransformers==4.46.3", "transformers", "4.46.3"),
        ("Package Version\ndeepspeed     0.16.4\n", "deepspeed", "0.16.4"),
        ("- `transformers` version: 4.46.0", "transformers", "4.46.0"),
        ("- `Accelerate` version: 0.34.2", "accelerate", "0.34.2"),
        ("Successfully installed accelerate-0.34.2 deepspeed-0.15.1", "deepspeed", "0.15.1"),
        ("deepspeed 0.16.4", "deepspeed", "0.16.4"),
    ],
)
def test_versions(text: str, package: str, version: str) -> None:
    assert job_of(text).version(package) == version


def test_no_versions_in_paths_and_prose() -> None:
    job = job_of('  File "/x/deepspeed-0.1.0/a.py", line 1\npip install deepspeed 0 of 5 done\ndeepspeed 3.5 samples/s')
    assert job.versions == {}


DICT = "{'train_batch_size': 16, 'zero_optimization': {'stage': 2, 'x': 5e8}, 'fp16': {'enabled': False}, 'a': None}"


@pytest.mark.parametrize(
    "text",
    [
        "config: " + DICT + " done",
        "INFO:a.b:" + DICT,
        each("[rank0]: ", DICT.replace(", '", ",\n '")),
        "[2024-01-01 10:00:00,000] [INFO] [config.py:9:print]   json = "
        + DICT.replace("'", '"').replace("{", "{\n").replace("False", "false").replace("None", "null"),
        "\n".join([DICT] * 8),
        "args: {'deepspeed': " + DICT + ", 'per_device_train_batch_size': 4}",
    ],
)
def test_printed_configs(text: str) -> None:
    job = job_of(text)
    assert [config.values for config in job.configs] == [
        {"train_batch_size": 16, "zero_optimization": {"stage": 2, "x": 5e8}, "fp16": {"enabled": False}, "a": None}
    ]
    assert job.configs[0].kind == "log"


def test_places_in_printed_configs() -> None:
    config = job_of("a\n[rank0]: {'train_batch_size': 16,\n[rank0]:  'zero_optimization': {'stage': 2}}").configs[0]
    assert config.places[("train_batch_size",)] == (2, 11)
    assert config.places[("zero_optimization", "stage")] == (3, 33)


def test_somebodys_arguments_are_no_config() -> None:
    assert job_of("{'train_batch_size': 8, 'lr': 1}\n{'per_device_train_batch_size': 4, 'fp16': True}").configs == []
    assert job_of("{'train_batch_size': 8, 'zero_optimization': {'stage': 2").configs == []


_DUMP = """DeepSpeedEngine configuration:
  gradient_accumulation_steps .. 4
  gradient_clipping ............ 1.0
  optimizer_name ............... adam
  train_batch_size ............. 32
  train_micro_batch_size_per_gpu  4
  world_size ................... 2
  zero_optimization_stage ...... 2"""


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[2025-10-01 09:12:44,100] [INFO] [config.py:1003:print] ",
        "[rank0]: [2025-10-01 09:12:44,100] [INFO] [config.py:1003:print] ",
        "[2025-10-01 09:12:44,100] [INFO] [logging.py:96:log_dist] [Rank 0] ",
        "worker-1: [2021-04-01 09:12:44,100] [INFO] [config.py:624:print] ",
    ],
)
@pytest.mark.parametrize("head", [True, False])
def test_the_engines_dump(prefix: str, head: bool) -> None:
    text = each(prefix, _DUMP if head else _DUMP.partition("\n")[2])
    job = job_of(f"{text}\n{text.replace('32', '64')}\n")
    assert [config.kind for config in job.configs] == ["log"]
    assert effective(job).batch() == {**dict(zip(BATCH_KEYS, (32, 4, 4), strict=True)), "data_parallel_size": 2}
    config = job.configs[0]
    assert (config.get("optimizer", "type"), config.get("gradient_clipping")) == ("adam", 1.0)
    assert (config.get("zero_optimization", "stage"), config.source("train_batch_size").line) == (2, 4 + head)


def test_the_dump_counts_replicas_and_that_of_neox_processes() -> None:
    job = job_of(_DUMP)
    job.set("tensor_parallel", 4)
    numbers = effective(job)
    assert (numbers.processes and numbers.processes.value, numbers.replicas, numbers.error) == (8, 2, None)
    neox = "\n".join(f"{line}........default" for line in _DUMP.split("\n")[1:])
    job = job_of(f"  model_parallel_size ............ 2........updated\n{neox}\n")
    assert (effective(job).replicas, job.value("train_batch_size")) == (1, 32)


@pytest.mark.parametrize(
    "text",
    [
        "  gradient_accumulation_steps ..... 4\n  world_size ........................ 8",  # Megatron's own
        "train_batch_size is 32 and train_micro_batch_size_per_gpu  is 4",
        "  train_batch_size ............. None\n",
        "we set train_batch_size ... 32 and more\n",
    ],
)
def test_no_dump_of_the_engine(text: str) -> None:
    assert not job_of(text).said("engine-world")
    assert all(not whole(job_of(text).value(key)) for key in BATCH_KEYS)


def test_the_trainers_own_block_gives_its_arguments() -> None:
    text = SAID[-1][0]
    job = job_of(each("[INFO|trainer.py:1] 2025-03-24 10:02:11,337 >> ", text))
    assert (job.value("trainer.gradient_accumulation_steps"), job.value("processes")) == (2, 4)
    assert job.framework == "transformers"
    job = job_of(text)  # a script with a loop of its own prints it so
    assert (job.facts, job.framework) == ({}, "transformers")
    assert list(effective(job).batch().values())[2:] == [2, 4]
    job.speak("accelerate", Source("train.py"))
    assert job.framework == "accelerate"
    job = job_of(f"{text}\n  Number of trainable parameters = 6,738,415,616")
    assert (job.framework, job.value("trainer.gradient_accumulation_steps")) == ("transformers", 2)


def test_printed_training_arguments() -> None:
    job = job_of(
        "Training/evaluation parameters TrainingArguments(\n_n_gpu=1,\nbf16=True,\ndeepspeed=ds.json,\n"
        "gradient_accumulation_steps=4,\nper_device_train_batch_size=2,\n)"
    )
    assert job.value("trainer.per_device_train_batch_size") == 2
    assert [fact.value for fact in job.references] == ["ds.json"]


def test_the_command_in_the_log_gives_its_arguments() -> None:
    job = job_of(
        "a\n[INFO] [runner.py:555:main] cmd = /usr/bin/python -u -m deepspeed.launcher.launch "
        "--world_info=eyJsb2NhbGhvc3QiOiBbMCwgMV19 --master_port=1 t.py --deepspeed z.json\n"
    )
    assert job.launches[0].script == "t.py"
    assert job.launches[0].source.line == 2


def test_frameworks_in_tracebacks_speak() -> None:
    text = FRAMES.replace("/w/train.py", "/x/pytorch_lightning/strategies/deepspeed.py") + WORDS
    assert job_of(text).framework == "lightning"


PIECES = st.sampled_from(
    [
        WORDS,
        FRAMES,
        DICT,
        "\n",
        "\r",
        "[rank0]: ",
        "{",
        "}",
        "'train_batch_size': ",
        '"zero_optimization"',
        "(",
        ")",
        "[",
        "]",
        "\x1b[31m",
        "\u2502 ",
        "\u256d\u2500\u2500\u2500\u2500\u2500\u2500\n",
        " vs hf ",
        "- ds a=1",
        "1",
        "\\n",
        "'",
        '"',
        "\\",
        "WORLD INFO DICT: {",
        "--world_info=",
        "dist_world_size=",
        "validation error for DeepSpeedZeroConfig\n",
        "\x00",
        "\ud800",
        "No such file or directory: '",
        "TrainingArguments(",
        "* Running training *",
        "x" * 3000,
        "DeepSpeedEngine configuration",
        *[text for text, _, _ in SAID],
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.lists(PIECES, max_size=30).map("".join), st.text(max_size=300)))
def test_no_text_raises(text: str) -> None:
    job_of(text)


@pytest.mark.parametrize(
    "piece",
    [
        "2025-05-05 05:05:05,505 INFO data worker 3 fetched shard 00017 of 02048 in 0.412 s, queue 31\n",
        WORDS,
        WORDS + "\n",
        "{",
        "{}",
        "'train_batch_size': {",
        "x",
        "{'loss': 1.5, 'epoch': 0.1}\n",
        " 10%|#| 1/9 [00:01<00:10, 1it/s]\r",
        "|",
        "a1:",
        DICT,
        DICT + "\n",
        "world_size=8 ",
        FRAMES + "TypeError: '>' not supported between instances of 'str' and 'int'\n",
    ],
)
def test_megabytes_take_seconds(piece: str) -> None:
    text = piece * (5_000_000 // len(piece))
    started = time.process_time()
    job_of(text)
    assert time.process_time() - started < 4
