"""Names of libraries that the script reader knows."""

from __future__ import annotations

#: The numbers of the config, which the engine also has methods for: name to symbol of a Number.
BATCH_SYMBOLS = {
    "gradient_accumulation_steps": "gas",
    "train_micro_batch_size_per_gpu": "micro",
    "train_batch_size": "train",
}
#: Optimizers, by the last part of their name.
OPTIMIZERS = (
    *("Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "Adafactor", "Lion", "FusedAdam", "DeepSpeedCPUAdam"),
    *("Lamb", "FusedLamb", "AdamW8bit", "Adam8bit", "NAdam", "RAdam", "Adadelta", "LBFGS", "ASGD", "Rprop"),
    *("Muon",),
)
#: The arguments of Hugging Face trainers.
ARGUMENTS = ("TrainingArguments", "Seq2SeqTrainingArguments")
#: The arguments of TRL's trainers.
TRL = (
    *("SFTConfig", "DPOConfig", "GRPOConfig", "PPOConfig", "RewardConfig", "KTOConfig", "ORPOConfig"),
    *("CPOConfig", "RLOOConfig", "OnlineDPOConfig", "GKDConfig"),
)
#: Layers whose statistics are those of one micro-batch.
BATCH_NORM = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d")
#: Functions that hand their argument on.
SAME = (
    *("tqdm", "trange", "ceil", "floor", "list", "tuple", "cycle", "reversed", "sorted", "track", "deepcopy"),
    *("prefetch", "BackgroundGenerator", "DeviceLoader", "chain", "int", "float", "abs", "round", "set"),
    *("mean",),
)
#: Arguments that say how long a schedule is.
STEP_TOTALS = ("num_training_steps", "T_max", "total_steps", "total_num_steps", "total_iters", "max_steps", "t_total")
#: Parts of the names of torchvision's models that hold BatchNorm.
NORMALISED = ("resnet", "resnext", "densenet", "mobilenet", "efficientnet", "_bn", "googlenet", "inception", "regnet")
