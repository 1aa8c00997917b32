"""Training arguments from command lines, JSON and YAML, and the settings of the frameworks."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from dsaccum_helpers.job import Job, JobError, Source
from dsaccum_helpers.readers import read
from dsaccum_helpers.readers.arguments import from_words, pairs, typed

HERE = Source("run.sh", 3)


def job_of(*given: Any) -> Job:
    job = Job()
    read(given, job)
    return job


def words(text: str, script: str | None = None, **options: Any) -> Job:
    job = Job(**options)
    from_words(shlex.split(text), job, HERE, script)
    return job


def facts(job: Job) -> dict[str, Any]:
    return {name: job.value(name) for name in job.facts}


@pytest.mark.parametrize(
    ("word", "value"),
    [("4", 4), ("-1", -1), ("2e-5", 2e-5), ("2.0", 2.0), (".5", 0.5), ("true", True), ("False", False), ("none", None)],
)
def test_words_are_typed(word: str, value: object) -> None:
    assert typed(word) == value
    assert type(typed(word)) is type(value)


@pytest.mark.parametrize("word", ["$NUM_ACC", "4,8", "1_000", "0x10", "nan", "9" * 5000, "", "auto", "4 "])
def test_what_spells_no_number_stays_text(word: str) -> None:
    assert typed(word) == word


def test_words_of_every_style() -> None:
    line = "data.json --a=1 --b 2 --c-d 3 --flag --neg -1 -v +x.y=5 ++z=6 --list 7 8 --text='a b' --url http://h?q=1"
    assert pairs(shlex.split(line)) == [
        ("a", 1),
        ("b", 2),
        ("c_d", 3),
        ("flag", True),
        ("neg", -1),
        ("x.y", 5),
        ("z", 6),
        ("list", 7),
        ("text", "a b"),
        ("url", "http://h?q=1"),
    ]


def test_a_trainers_command_line() -> None:
    job = words("--per-device-train-batch-size=4 --gradient_accumulation_steps 8 --deepspeed conf/ds.json --bf16 True")
    assert job.value("trainer.per_device_train_batch_size") == 4
    assert job.value("trainer.gradient_accumulation_steps") == 8
    assert job.fact("trainer.gradient_accumulation_steps") == (8, HERE._replace(key="gradient_accumulation_steps"))
    assert [fact.value for fact in job.references] == ["conf/ds.json"]
    assert job.framework == "transformers"


@pytest.mark.parametrize(
    ("line", "script", "framework"),
    [
        ("--do_train --per_device_train_batch_size 4", None, "transformers"),
        ("--per_device_train_batch_size 4 --output_dir o", None, "transformers"),
        ("--per_device_train_batch_size 4 --output_dir o", "run_clm_no_trainer.py", "deepspeed"),
        ("--per_device_train_batch_size 4 --zero_stage 3 --deepspeed --output_dir o", "main.py", "deepspeed"),
        ("--batch-size-per-replica 2 --grad-acc-steps 8 --deepspeed ds.json", "tune.py", "transformers"),
        ("--deepspeed --deepspeed_config ds.json", "train.py", "deepspeed"),
        ("--num_generations 8 --per_device_train_batch_size 1", "run.py", "trl"),
        ("--per_device_train_batch_size 1", "grpo.py", "trl"),
        ("--trainer.accumulate_grad_batches 4", "main.py", "lightning"),
        ("--tensor-model-parallel-size 2 --micro-batch-size 4", "pretrain_gpt.py", "megatron"),
        ("--train_batch_size 64 --micro_train_batch_size 4", "openrlhf.cli.train_sft", "openrlhf"),
        ("--lr 1e-4", "train.py", "deepspeed"),
        ("--pretrain OpenRLHF/base --train_batch_size 4 --out runs/grpo", "train.py", "deepspeed"),
    ],
)
def test_who_is_spoken_for(line: str, script: str | None, framework: str) -> None:
    assert words(line, script).framework == framework


@pytest.mark.parametrize("name", ["batch-size-per-replica", "per_gpu_train_batch_size", "micro_batch_size"])
def test_other_names_of_the_micro_batch(name: str) -> None:
    assert words(f"--{name} 2").value("trainer.per_device_train_batch_size") == 2


def test_openrlhf_builds_its_config() -> None:
    job = words("--train_batch_size 128 --micro_train_batch_size 4 --zero_stage 3 --ring_attn_size 2 --max_norm 1.0")
    assert job.config is not None
    assert job.config.kind == "arguments"
    assert job.value("train_batch_size") == 128
    assert job.value("train_micro_batch_size_per_gpu") == 4
    assert job.value("zero_stage") == 3
    assert job.config.source("train_batch_size").line == 3
    assert job.value("sequence_parallel") == 2
    ray = words("--actor_num_nodes 2 --actor_num_gpus_per_node 4 --micro_train_batch_size 4", "train_ppo_ray")
    assert ray.value("processes") == 8


def test_lightning_starts_its_own_processes() -> None:
    job = words(
        "trainer.devices=4 trainer.num_nodes=2 trainer.accumulate_grad_batches='$NUM_ACC' model.lr=1", "main.py"
    )
    assert job.value("processes") == 8
    assert job.value("trainer.accumulate_grad_batches") == "$NUM_ACC"
    assert "trainer.lr" not in job.facts
    assert words("--gpus 0,1 --accumulate_grad_batches 2").value("processes") == 2


def test_parallel_sizes() -> None:
    job = words("--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --context-parallel-size 2")
    assert [job.value(name) for name in ("tensor_parallel", "pipeline_parallel", "sequence_parallel")] == [4, 2, 2]
    assert "tensor_parallel" not in words("--vllm_tensor_parallel_size 4 --tensor-model-parallel-size $TP").facts


def test_a_config_in_the_words_themselves() -> None:
    assert words("--deepspeed '{\"train_batch_size\": 8}'").value("train_batch_size") == 8
    assert words("--deepspeed_config eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0=").value("train_batch_size") == 8
    assert not words("--deepspeed_config eyJ!").configs


def test_training_arguments_as_json() -> None:
    given = {
        "output_dir": "o",
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "deepspeed": "d.json",
    }
    job = job_of(("args.json", json.dumps(given, indent=2)))
    assert not job.configs
    fact = job.fact("trainer.gradient_accumulation_steps")
    assert fact == (2, Source("args.json", 4, 3, "gradient_accumulation_steps"))
    assert [fact.value for fact in job.references] == ["d.json"]
    assert job.framework == "transformers"


AXOLOTL = """\
base_model: m
micro_batch_size: 2   # per device
gradient_accumulation_steps: 4
learning_rate: 2e-5
sequence_parallel_degree: 2
deepspeed: deepspeed_configs/zero2.json
datasets:
  - path: d
    type: alpaca
"""


def test_axolotl() -> None:
    job = job_of(("axolotl.yml", AXOLOTL))
    assert job.fact("trainer.per_device_train_batch_size") == (2, Source("axolotl.yml", 2, 1, "micro_batch_size"))
    assert job.value("trainer.learning_rate") == 2e-5
    assert job.value("sequence_parallel") == 2
    assert [fact.value for fact in job.references] == ["deepspeed_configs/zero2.json"]
    assert job.framework == "transformers"
    assert job_of(("unnamed", AXOLOTL)).facts == job_of(("unnamed", AXOLOTL)).facts != {}


def test_llama_factory_and_trl() -> None:
    factory = job_of(("sft.yaml", "stage: sft\nfinetuning_type: lora\nper_device_train_batch_size: 1\nfp16: true\n"))
    assert factory.framework == "transformers"
    assert not factory.configs
    grpo = job_of(("g.yaml", "num_generations: 8\nper_device_train_batch_size: 1\nuse_vllm: true\n"))
    assert grpo.framework == "trl"
    assert grpo.value("generation.num_generations") == 8
    nested = job_of(("a.yaml", "base_model: m\nmicro_batch_size: 1\nrl: grpo\ntrl:\n  num_generations: 4\n"))
    assert nested.framework == "trl"
    assert nested.fact("generation.num_generations") == (4, Source("a.yaml", 5, 3, "trl.num_generations"))


ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  deepspeed_config_file: ds.json
  gradient_accumulation_steps: 2
  zero_stage: 2
num_machines: 2
num_processes: 16
mixed_precision: 'no'
"""


def test_accelerate() -> None:
    job = job_of(("acc.yaml", ACCELERATE))
    assert job.framework == "accelerate"
    assert job.value("processes") == 16
    place = Source("acc.yaml", 5, 3, "deepspeed_config.gradient_accumulation_steps")
    assert job.fact("accelerate.gradient_accumulation_steps") == (2, place)
    assert job.value("accelerate.mixed_precision") == "no"
    assert [fact.value for fact in job.references] == ["ds.json"]
    single = job_of(("acc.yaml", "distributed_type: 'NO'\nnum_processes: 4\n"))
    assert single.value("processes") is None
    as_json = job_of(("default_config.json", '{"distributed_type": "DEEPSPEED", "num_processes": 2}'))
    assert as_json.value("processes") == 2
    assert not as_json.configs


def test_a_command_counts_before_the_accelerate_file(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text(ACCELERATE)
    (tmp_path / "args.yaml").write_text("per_device_train_batch_size: 3\n")
    command = "accelerate launch --config_file acc.yaml --num_processes 4 train.py --config args.yaml\n"
    (tmp_path / "run.sh").write_text(command)
    job = job_of(tmp_path / "acc.yaml", tmp_path / "run.sh")
    assert job.value("processes") == 4
    assert job.value("trainer.per_device_train_batch_size") == 3
    assert job_of(tmp_path / "run.sh").value("accelerate.zero_stage") == 2


def test_lightning_yaml() -> None:
    text = (
        "trainer:\n  devices: 4\n  num_nodes: 2\n  accumulate_grad_batches: 8\n  strategy:\n"
        "    class_path: lightning.pytorch.strategies.DeepSpeedStrategy\n    init_args:\n      config: ds.json\n"
    )
    job = job_of(("lit.yaml", text))
    assert job.framework == "lightning"
    assert (job.value("processes"), job.value("trainer.accumulate_grad_batches")) == (8, 8)
    assert "DeepSpeed" in job.value("trainer.strategy")
    assert [fact.value for fact in job.references] == ["ds.json"]


def test_deepspeed_config_in_yaml() -> None:
    embedded = job_of(("c.yaml", "lr: 1\ndeepspeed:\n  train_batch_size: 64\n  fp16:\n    enabled: true\n"))
    assert embedded.config is not None
    assert embedded.config.source("train_batch_size")[:3] == ("c.yaml", 3, 3)
    neox = "{\n  # GPT-NeoX\n  'pipe-parallel-size': 2,\n  'train_micro_batch_size_per_gpu': 4,\n}\n"
    found = job_of(("neox.yml", neox)).config
    assert found is not None
    assert found.source("train_micro_batch_size_per_gpu")[:3] == ("neox.yml", 4, 3)
    assert found.strict is None


def test_merge_keys_and_anchors() -> None:
    job = job_of(("a.yaml", "b: &b\n  num_generations: 2\nargs:\n  <<: *b\n  per_device_train_batch_size: 1\n"))
    assert job.value("generation.num_generations") == 2


@pytest.mark.parametrize(
    ("name", "text", "versions"),
    [
        (
            "requirements.txt",
            "# pins\ndeepspeed==0.15.4  # old\ntransformers[torch]==4.46.0\nnumpy>=1\n-e .\n",
            "0.15.4",
        ),
        ("out.txt", "accelerate==1.0\ndeepspeed==0.15.4+cu118\n", "0.15.4+cu118"),
        ("pip.txt", "Package    Version\n---------- -------\ndeepspeed  0.15.4\n", "0.15.4"),
        ("environment.yml", "name: e\ndependencies:\n  - python=3.11\n  - pip:\n    - deepspeed==0.15.4\n", "0.15.4"),
    ],
)
def test_versions(name: str, text: str, versions: str) -> None:
    assert job_of((name, text)).version("deepspeed") == versions


def test_broken_yaml() -> None:
    with pytest.raises(JobError, match=r"a\.yaml:3: .*Smallest fix"):
        job_of(("a.yaml", "a: 1\nb: [1,\n"))
    job = job_of(("a.yaml", "num_processes: 4\ndeepspeed_config: {a: [\n"))
    assert "a.yaml" in job.unreadable[0].message
    with pytest.raises(JobError, match="holds no settings"):
        job_of(("a.yaml", "- 1\n- 2\n"))


@pytest.mark.parametrize(
    "text",
    [
        'spec:\n  containers:\n  - command: ["deepspeed", "--num_gpus=8", "t.py", "--deepspeed_config", "d.json"]\n',
        "resources:\n  accelerators: A100:8\nrun: |\n  deepspeed --num_gpus 8 t.py --deepspeed_config d.json\n",
        "job:\n  command: [bash, -c, 'torchrun --nproc_per_node=8 t.py --deepspeed_config d.json']\n",
    ],
)
def test_commands_in_job_descriptions(text: str) -> None:
    job = job_of(("job.yaml", text))
    assert job.value("processes") == 8
    assert "d.json" in [fact.value for fact in job.references]
    assert job.launches[0].source.line == 3 + ("run: |" in text) - ("job:" in text)


def test_printed_environment() -> None:
    job = job_of((".env", "# node 0\nWORLD_SIZE=8\nexport RANK=0\nHOME=/root\nPS1=$ x y\n"))
    assert facts(job) == {"environment.WORLD_SIZE": 8, "environment.RANK": 0}
    assert job.fact("environment.WORLD_SIZE") == (8, Source(".env", 2, 1, "WORLD_SIZE"))


def test_arguments_one_a_line() -> None:
    job = job_of(("args.txt", "--per_device_train_batch_size\n4\n--deepspeed\nds.json\n"))
    assert job.value("trainer.per_device_train_batch_size") == 4
    assert job.framework == "transformers"


def test_locked_and_listed_versions() -> None:
    lock = '[[package]]\nname = "deepspeed"\nversion = "0.15.4"\n'
    assert job_of(("uv.lock", lock)).version("deepspeed") == "0.15.4"
    conda = "# packages in environment at /opt:\n# Name Version Build\ndeepspeed   0.18.1   pypi_0  pypi\n"
    assert job_of(("v.txt", conda)).version("deepspeed") == "0.18.1"
    assert not job_of(("pyproject.toml", '[tool.x]\ndeepspeed = "==0.15"\n')).launches
