"""The text of ``dsaccum check --help``."""

CHECK = """\
dsaccum check [PATH ...] [options]

Reads what there is of one training job, says whether batch and accumulation settings agree, and how to mend them.
Nothing of it is run. A PATH is a DeepSpeed config, TrainingArguments, an Accelerate, axolotl, LLaMA-Factory or TRL
YAML, a launch command or job script, a hostfile, a training script or notebook, a log or traceback; - is standard
input. What a file is, is seen from its content.

  --framework NAME          deepspeed, transformers, accelerate, lightning, trl, openrlhf or megatron; guessed otherwise
  --processes N             how many training processes the job is launched with (the world size)
  --tensor-parallel N, --pipeline-parallel N, --sequence-parallel N
                            sizes that divide the processes into data-parallel replicas
  --have NAME==VERSION      an installed version; may be repeated
  --here                    take versions and devices from this machine
  --set NAME=VALUE          any other fact or DeepSpeed key, as in loader.batch_size=8; may be repeated
  --for N[,N...]            answer for several numbers of processes at once
  --format FORMAT           text, json, sarif, github (annotations) or html
  --fix                     print the mended file as a diff
  --write                   write the mended file, and keep the old one beside it as NAME.orig
  --select CODE[,CODE...]   report these codes only
  --ignore CODE[,CODE...]   report all but these codes; in a script: # dsaccum: ignore[CODE]

Exit status: 0 nothing wrong, 1 at least one error or warning, 2 an input that cannot be read or an option that is off.
"""
