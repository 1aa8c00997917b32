"""Launch commands and job scripts: which program, how many processes, which arguments and environment."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsaccum_helpers.job import Job
from dsaccum_helpers.readers import launch
from dsaccum_helpers.readers.shell import UNKNOWN, Shell


def job_of(text: str, **files: str) -> Job:
    job = Job()
    for name, content in {"run.sh": text, **files}.items():
        launch.read(content, name, job)
    launch.settle(job)
    return job


#: Text, launcher, processes, script.
COMMANDS = [
    ("deepspeed --num_gpus=8 train.py --x 1", "deepspeed", 8, "train.py"),
    ("deepspeed --num_gpu 4 train.py", "deepspeed", 4, "train.py"),
    ("deepspeed --num_accelerators 4 train.py", "deepspeed", 4, "train.py"),
    ("deepspeed train.py", "deepspeed", None, "train.py"),
    ("CUDA_VISIBLE_DEVICES=0,2,3 deepspeed train.py", "deepspeed", 3, "train.py"),
    ("export CUDA_VISIBLE_DEVICES=0,1\ndeepspeed --master_port 29600 train.py", "deepspeed", 2, "train.py"),
    ("CUDA_VISIBLE_DEVICES=0,1 deepspeed --num_gpus 1 train.py", "deepspeed", 1, "train.py"),
    ("deepspeed -i localhost:0,1,4 --master_port=1 train.py", "deepspeed", 3, "train.py"),
    ("deepspeed --include 'node1:0,1@node2:0,1,2' train.py", "deepspeed", 5, "train.py"),
    ("deepspeed --include node1@node2 train.py", "deepspeed", None, "train.py"),
    ("deepspeed --exclude localhost:1 train.py", "deepspeed", None, "train.py"),
    ("deepspeed --num_nodes=2 --num_gpus=4 train.py", "deepspeed", 8, "train.py"),
    ("deepspeed --num_nodes=2 train.py", "deepspeed", None, "train.py"),
    ("deepspeed --bind_cores_to_rank --num_gpus 2 --module pkg.train --a", "deepspeed", 2, "pkg.train"),
    ("deepspeed --no_local_rank --num_gpus 2 pkg/train.py", "deepspeed", 2, "pkg/train.py"),
    ("python -m deepspeed.launcher.runner --num_gpus 2 train.py", "deepspeed", 2, "train.py"),
    ("/opt/conda/bin/deepspeed --num_gpus 2 train.py", "deepspeed", 2, "train.py"),
    ("deepspeed --num_gpus $N train.py", "deepspeed", None, "train.py"),
    ("deepspeed --num_gpus $(nvidia-smi -L | wc -l) train.py", "deepspeed", None, "train.py"),
    ("torchrun --nproc_per_node=4 train.py", "torchrun", 4, "train.py"),
    ("torchrun --nproc-per-node 4 --nnodes 2 --node-rank $R train.py", "torchrun", 8, "train.py"),
    ("torchrun --standalone --nnodes=1 --nproc_per_node=8 -m pkg.train --lr 1", "torchrun", 8, "pkg.train"),
    ("torchrun train.py", "torchrun", 1, "train.py"),
    ("torchrun --nnodes=1:4 --nproc_per_node=8 train.py", "torchrun", None, "train.py"),
    ("torchrun --nproc_per_node=auto train.py", "torchrun", None, "train.py"),
    ("CUDA_VISIBLE_DEVICES=4,5 torchrun --nproc_per_node=gpu train.py", "torchrun", 2, "train.py"),
    ("python3 -m torch.distributed.launch --use_env --nproc_per_node 2 train.py", "torchrun", 2, "train.py"),
    ("python -u -m torch.distributed.run --nproc_per_node 2 train.py", "torchrun", 2, "train.py"),
    ("python -m torch.distributed.launch --nnodes=$NNODES --nproc_per_node=8 t.py", "torchrun", None, "t.py"),
    ("accelerate launch --num_processes 4 train.py", "accelerate", 4, "train.py"),
    ("accelerate launch --config_file z.yaml train.py", "accelerate", None, "train.py"),
    ("accelerate launch --num_machines 2 --num_processes 16 train.py", "accelerate", 16, "train.py"),
    ("accelerate launch --multi_gpu --mixed_precision=bf16 --num_processes=2 -m p.t x", "accelerate", 2, "p.t"),
    ("accelerate launch --debug train.py --num_processes 9", "accelerate", None, "train.py"),
    ("python -m accelerate.commands.launch --num_processes 4 train.py", "accelerate", 4, "train.py"),
    ("srun --ntasks=8 python train.py", "srun", 8, "train.py"),
    ("srun -N 2 --ntasks-per-node=4 python -u train.py", "srun", 8, "train.py"),
    ("srun -N2 -n16 --label python train.py", "srun", 16, "train.py"),
    ("srun -N 2 torchrun --nnodes 2 --nproc_per_node 4 train.py", "torchrun", 8, "train.py"),
    ("srun --nodes=2 bash -c 'torchrun --nproc_per_node 4 --nnodes $N t.py'", "torchrun", 8, "t.py"),
    ("mpirun -np 16 -x PATH --bind-to none -mca pml ob1 python train.py", "mpirun", 16, "train.py"),
    ("mpiexec -n 4 python train.py", "mpirun", 4, "train.py"),
    ("mpirun -H a:4,b:4 python train.py", "mpirun", 8, "train.py"),
    ("mpirun --allow-run-as-root -np 2 -genv A 1 bash -c 'cd x; python train.py'", "mpirun", 2, "train.py"),
    ("deepspeed --num_gpus 2 t.py \n--lr 1 \n --x 2\n", "deepspeed", 2, "t.py"),
    ("export WORLD_SIZE=$OMPI_COMM_WORLD_SIZE\npython train.py", "python", None, "train.py"),
    (
        'A="python3 t.py --x 1 \\\n --local_rank $R\n"\ncase $R in\n[0])\n numactl --membind=0 ${A}\n;;\nesac',
        "python",
        None,
        "t.py",
    ),
    (
        "set -x\nread -r -d '' cmds <<EOF\nopenrlhf.cli.train_sft \\\n   --max_len 2048 \\\n"
        "   --input 'a' \\\n   --zero 2\nEOF\n"
        'if [[ ${1} != "slurm" ]]; then\n  deepspeed --num_gpus 2 --module $cmds\nfi',
        "deepspeed",
        2,
        "openrlhf.cli.train_sft",
    ),
    ("A=$(cat <<EOF\n--nproc_per_node 4\nEOF\n)\ntorchrun $A t.py", "torchrun", 4, "t.py"),
    ('N=$1\nif [ "$N" == "" ]; then\n  N=2\nfi\ndeepspeed --num_gpus $N t.py &> log', "deepspeed", 2, "t.py"),
    ("python train.py --batch 4", "python", 1, "train.py"),
    ("python -m pkg.train", "python", 1, "pkg.train"),
    ("nohup deepspeed --num_gpus 2 train.py > log 2>&1 &", "deepspeed", 2, "train.py"),
    ("uv run torchrun --nproc_per_node 2 train.py", "torchrun", 2, "train.py"),
    ("conda run -n env --no-capture-output deepspeed --num_gpus 2 t.py", "deepspeed", 2, "t.py"),
    ("docker run --gpus all img bash -c 'deepspeed --num_gpus 2 t.py'", "deepspeed", 2, "t.py"),
    ("srun -n 8 singularity exec --nv i.sif python t.py", "srun", 8, "t.py"),
    ("env A=1 B=2 deepspeed --num_gpus 2 t.py", "deepspeed", 2, "t.py"),
    ("! deepspeed --num_gpus 2 t.py", "deepspeed", 2, "t.py"),
    ("!deepspeed --num_gpus 2 t.py", "deepspeed", 2, "t.py"),
    ("$ deepspeed --num_gpus 2 t.py", "deepspeed", 2, "t.py"),
    ("(base) me@host:~/x$ deepspeed --num_gpus 2 t.py", "deepspeed", 2, "t.py"),
    ("cd a && deepspeed --num_gpus 2 t.py", "deepspeed", 2, "t.py"),
    ("deepspeed --num_gpus 2 \\\r\n  t.py \\\r\n --a 1\r\n", "deepspeed", 2, "t.py"),
    ("N=4\nM=2\ntorchrun --nproc_per_node $((N*M)) t.py", "torchrun", 8, "t.py"),
    ("N=${1:-4}\ntorchrun --nproc_per_node ${N} t.py", "torchrun", 4, "t.py"),
    ("torchrun --nproc_per_node=${NPROC:-8} t.py", "torchrun", 8, "t.py"),
    ('N="8"\ntorchrun --nproc_per_node="$N" t.py', "torchrun", 8, "t.py"),
    ("export G=0,1,2\nN=$(echo $G | tr ',' '\\n' | wc -l)\ndeepspeed --num_gpus $N t.py", "deepspeed", 3, "t.py"),
    ("G=0,1\nN=`echo $G | awk -F',' '{print NF}'`\ndeepspeed --num_gpus $N t.py", "deepspeed", 2, "t.py"),
    ("N=`expr 2 \\* 4`\ndeepspeed --num_gpus $N t.py", "deepspeed", 8, "t.py"),
    ('D="--nproc_per_node 8 --nnodes 2"\ntorchrun $D t.py', "torchrun", 16, "t.py"),
    ("D=(--nproc_per_node 8 # gpus\n --nnodes 2)\ntorchrun ${D[@]} t.py", "torchrun", 16, "t.py"),
    ('C="deepspeed --num_gpus 4 t.py"\necho $C\neval $C', "deepspeed", 4, "t.py"),
    ("if [ $X = 1 ]; then\n torchrun --nproc_per_node 2 t.py\nfi", "torchrun", 2, "t.py"),
    ("for s in 1 2 3; do deepspeed --num_gpus 2 t.py --seed $s; done", "deepspeed", 2, "t.py"),
    ("python prepare_data.py\ntorchrun --nproc_per_node 2 t.py\npython eval.py", "torchrun", 2, "t.py"),
    ("torchrun --nproc_per_node 1 eval.py\ntorchrun --nproc_per_node 2 train.py", "torchrun", 2, "train.py"),
    ("python eval.py\npython train.py", "python", 1, "train.py"),
    ("# deepspeed --num_gpus 8 a.py\ndeepspeed --num_gpus 2 b.py", "deepspeed", 2, "b.py"),
    ("set -x\nfunction go() {\n  deepspeed --num_gpus 2 t.py\n}\ngo", "deepspeed", 2, "t.py"),
    ("FORCE_TORCHRUN=1 NPROC_PER_NODE=4 llamafactory-cli train x.yaml", "llamafactory-cli", 4, "train"),
    ("CUDA_VISIBLE_DEVICES=0,1 llamafactory-cli train x.yaml", "llamafactory-cli", 2, "train"),
    ("NPROC_PER_NODE=8 swift sft --model m", "swift", 8, "sft"),
    ("axolotl train config.yml", "axolotl", None, "train"),
    ("accelerate launch -m axolotl.cli.train c.yml --deepspeed z.json", "accelerate", None, "axolotl.cli.train"),
    ("trl grpo --config g.yaml --num_processes 4", "trl", 4, "grpo"),
    ("ray job submit --address=http://x -- python3 -m openrlhf.cli.train_ppo_ray --a 1", "ray", None, None),
    ("deepspeed --launcher openmpi --num_gpus 2 --master_addr=x t.py", "deepspeed", 2, "t.py"),
    ("set N=2\ndeepspeed --num_gpus %N% t.py", "deepspeed", 2, "t.py"),
    ("deepspeed --num_gpus 2 ^\n t.py --a 1", "deepspeed", 2, "t.py"),
    ("$env:N = '2'\ntorchrun --nproc_per_node $env:N t.py", "torchrun", 2, "t.py"),
    ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\nsrun python t.py", "srun", 8, "t.py"),
    ("#SBATCH -N 2\n#SBATCH -n 16  # all\nsrun python t.py", "srun", 16, "t.py"),
    (
        "#SBATCH --nodes=4\n#SBATCH --gres=gpu:a100:8\nsrun torchrun --nnodes $SLURM_NNODES "
        "--nproc_per_node $SLURM_GPUS_ON_NODE t.py",
        "torchrun",
        32,
        "t.py",
    ),
    (
        "#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\nsrun accelerate launch "
        "--num_processes $((SLURM_NNODES * 8)) --num_machines $SLURM_NNODES t.py",
        "accelerate",
        16,
        "t.py",
    ),
    (
        '#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\nexport GPUS=4\nsrun bash -c "torchrun '
        '--nnodes $SLURM_JOB_NUM_NODES --nproc_per_node $GPUS --node_rank \\$SLURM_PROCID t.py"',
        "torchrun",
        8,
        "t.py",
    ),
    (
        '#SBATCH --nodes=2\nL="python -m torch.distributed.run --nproc_per_node 4 --nnodes 2"\nC="p.py --a 1"\n'
        'srun --jobid $SLURM_JOBID bash -c "$L --node_rank \\$SLURM_PROCID $C"',
        "torchrun",
        8,
        "p.py",
    ),
]


@pytest.mark.parametrize(("text", "launcher", "processes", "script"), COMMANDS)
def test_command(text: str, launcher: str, processes: int | None, script: str | None) -> None:
    job = job_of(text)
    assert job.launches, text
    first = job.launches[0]
    assert (first.launcher, first.processes) == (launcher, processes)
    if script:
        assert first.script == script
    assert job.value("processes") == processes


@pytest.mark.parametrize("text", [text for text, *_ in COMMANDS])
def test_commands_are_recognised(text: str) -> None:
    assert launch.recognises(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the deepspeed engine counts micro-batches",
        "deepspeed --version",
        "accelerate config",
        "pip install deepspeed",
        "python -m pip install torch",
        "python -c 'print(1)'",
        "python --version",
        "Traceback (most recent call last):\n  File 'x.py', line 1, in f",
        "import torch\nprint(1)\n",
        "train_batch_size: 4\n",
    ],
)
def test_what_starts_nothing(text: str) -> None:
    assert not launch.recognises(text)
    job = job_of(text)
    assert not job.launches
    assert job.value("processes") is None


def test_arguments_lines_and_references() -> None:
    job = job_of("\n\ndeepspeed --num_gpus 2 t.py --deepspeed conf/ds.json --per_device_train_batch_size 4 --lr $LR\n")
    assert job.value("trainer.per_device_train_batch_size") == 4
    assert "trainer.lr" not in job.facts
    assert [fact.value for fact in job.references] == ["conf/ds.json"]
    assert job.fact("processes").source[:2] == ("run.sh", 3)  # type: ignore[union-attr]


def test_unknown_values_are_left_out_and_do_not_swallow_others() -> None:
    job = job_of('torchrun t.py --gradient_accumulation_steps $GAS --bf16 "$@" --per_device_train_batch_size=$B --x 1')
    assert {name for name in job.facts if name.startswith("trainer.")} <= {"trainer.bf16", "trainer.x"}
    assert job.value("trainer.x") == 1


def test_environment() -> None:
    job = job_of("A=0\nexport B=2 C='x y'\nexport D\nD=5\nexport E=$(hostname)\nF=3 deepspeed --num_gpus 1 t.py")
    names = {name: job.value(name) for name in job.facts if name.startswith("environment.")}
    assert names == {"environment.B": 2, "environment.C": "x y", "environment.D": 5, "environment.F": 3}
    assert job.fact("environment.B").source.line == 2  # type: ignore[union-attr]


def test_accelerate_flags() -> None:
    job = job_of(
        "accelerate launch --use_deepspeed --zero_stage 3 --gradient_accumulation_steps 4 --mixed_precision bf16 "
        "--deepspeed_config_file ds.json train.py --gradient_accumulation_steps 8"
    )
    assert job.value("accelerate.flag.gradient_accumulation_steps") == 4
    assert job.value("accelerate.flag.zero_stage") == 3
    assert job.value("accelerate.use_deepspeed") is True
    assert job.value("accelerate.mixed_precision") == "bf16"
    assert job.value("trainer.gradient_accumulation_steps") == 8
    assert "ds.json" in [fact.value for fact in job.references]


HOSTS = "# two nodes\nnode-1 slots=8\nnode-2 slots=4\n"


@pytest.mark.parametrize(
    ("options", "processes"),
    [
        ("--hostfile hosts", 12),
        ("--hostfile=conf/hosts", 12),
        ("-H hosts --num_nodes 1", 8),
        ("--hostfile hosts --num_gpus 2", 4),
        ("--hostfile hosts --include node-1:0,1@node-2", 6),
        ("--hostfile hosts --exclude node-2:0,1", 10),
        ("--hostfile hosts --exclude node-2", 8),
        ("--include node-2", None),
        ("--num_gpus 2", 2),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_hostfile(options: str, processes: int | None, first: bool) -> None:
    job = Job()
    files = [("run.sh", f"deepspeed {options} t.py"), ("hosts", HOSTS)]
    for name, text in files if first else files[::-1]:
        launch.read(text, name, job)
    assert job.value("processes") == processes
    assert job.launches[0].processes == processes


def test_a_hostfile_is_recognised_by_its_content() -> None:
    assert launch.recognises(HOSTS)
    assert not launch.recognises("node slots\n")
    assert job_of("mpirun --hostfile hosts python t.py", hosts=HOSTS).value("processes") == 12


def test_a_plain_python_is_one_process_only_where_nothing_else_counts() -> None:
    assert job_of("python main.py --gpus 0,1").value("processes") is None
    job = Job()
    launch.read("python main.py", "run.sh", job)
    job.speak("lightning", None)  # type: ignore[arg-type]
    launch.settle(job)
    assert job.value("processes") is None


def test_conditions_make_a_second_value_unknown() -> None:
    assert job_of("if $A; then N=2; else N=4; fi\ndeepspeed --num_gpus $N t.py").value("processes") is None
    assert job_of("N=8\nif [ -z $N ]; then N=4; fi\ndeepspeed --num_gpus $N t.py").value("processes") == 8
    assert job_of('[ -z "$N" ] && N=4\ndeepspeed --num_gpus $N t.py').value("processes") == 4


def test_a_here_document_is_no_command() -> None:
    job = job_of("cat > x.sh <<EOF\ndeepspeed --num_gpus 8 a.py\nEOF\ndeepspeed --num_gpus 2 b.py\n")
    assert [one.script for one in job.launches] == ["b.py"]
    assert job_of("bash <<'EOF'\ndeepspeed --num_gpus 8 a.py\nEOF\n").value("processes") == 8


def test_a_config_that_the_script_writes() -> None:
    text = 'M=4\ncat <<EOT > ds.json\n{\n "train_micro_batch_size_per_gpu": $M,\n'
    text += ' "zero_optimization": {"stage": %s}\n}\nEOT\n'
    config = job_of(text % 1).configs[0]
    assert config.values == {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}}
    assert config.places[("train_micro_batch_size_per_gpu",)][0] == 4
    assert job_of(text % "$STAGE").configs == []


def test_variables() -> None:
    shell = Shell()
    text = """A=1; B=$A$A; C='$A'; D="x${A}y"; E=${Z:-d}; F=$((A + 2*3)); G=(a "b c"); H=${#G[@]}; I=${G[1]}; J=$K"""
    list(shell.commands(text))
    assert shell.variables == {
        "A": "1",
        "B": "11",
        "C": "$A",
        "D": "x1y",
        "E": "d",
        "F": "7",
        "G": ["a", "b c"],
        "H": "2",
        "I": "b c",
        "J": UNKNOWN,
    }


def test_another_file_sets_a_variable() -> None:
    job = Job()
    launch.read("export NPROC=4\n", "env.sh", job)
    launch.read("source env.sh\ntorchrun --nproc_per_node $NPROC t.py", "run.sh", job)
    assert job.value("processes") == 4


PIECES = st.sampled_from(
    [
        "deepspeed ",
        "torchrun ",
        "--num_gpus ",
        "$(",
        ")",
        "${",
        "}",
        "'",
        '"',
        "\\",
        "\n",
        "`",
        "((",
        "))",
        "<<EOF",
        "EOF",
        "bash -c ",
        "A=",
        "(",
        "srun ",
        "mpirun ",
        "-np ",
        "$A",
        "${A:-",
        "if ",
        "fi",
        "for ",
        "done",
        "8",
        " ",
        ";",
        "&&",
        "|",
        "t.py",
        "#SBATCH -N ",
        "export ",
        "eval ",
        "x",
        "\r\n",
        "\x00",
        "@",
        "*",
        "/",
        "%",
        "**",
        "-",
        "é",
        "1e99",
        "$((",
        "accelerate launch ",
        "python -m ",
        "--include ",
        "slots=",
        "{",
        "=",
        "~",
        "\ue000",
        "let ",
        ":",
        "[",
        "]",
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.lists(PIECES, max_size=60).map("".join), st.text(max_size=200)))
def test_no_text_raises(text: str) -> None:
    job: Any = job_of(text)
    launch.recognises(text)
    assert job is not None


@pytest.mark.parametrize(
    "piece",
    ["$(", "${A:-", '"', "'", "((", "a=(", "`", "\\", "A=$A$A\n", "bash -c '", "$((1+", "{", "<<A\n", "eval $A;A="],
)
def test_no_text_takes_long(piece: str) -> None:
    started = time.process_time()
    job_of(piece * (50_000 // len(piece)))
    assert time.process_time() - started < 5
