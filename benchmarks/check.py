"""What a person waits for at ``dsaccum check``: whole processes, from start to end, side by side in turning order.

The floor is a bare Python that imports json; the ceiling is what DeepSpeed itself needs to say whether a config is
right. Bytecode is there for all of them, as after an installation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.report import Table, median, spread

ROOT = Path(__file__).resolve().parents[1]
FLOOR, CONFIG, CEILING = "python -c 'import json'", "dsaccum check ds_config.json", "DeepSpeedConfig(...)"
LOG, SCRIPT = "dsaccum check, a log of 10 MB", "dsaccum check, a script of 5,000 lines"
#: A start takes hundredths of a second, so many of them make one steady number.
STARTS = 15
DS_CONFIG = {
    "train_batch_size": 256,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 8,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "data_types": {"grad_accum_dtype": "fp32"},
    "zero_optimization": {"stage": 2, "overlap_comm": True},
}
ENGINE = (
    "import os; os.environ.update(RANK='0', WORLD_SIZE='1', LOCAL_RANK='0');"
    "from deepspeed.runtime.config import DeepSpeedConfig;"
    "print(DeepSpeedConfig({'train_batch_size': 32, 'train_micro_batch_size_per_gpu': 4}).gradient_accumulation_steps)"
)
STEP = """
def part_{n}(engine, batches, device):
    for index, (inputs, targets) in enumerate(batches):
        outputs = engine(inputs.to(device))
        loss = torch.nn.functional.cross_entropy(outputs, targets.to(device))
        engine.backward(loss)
        engine.step()
        if index % 10 == 0:
            print(index, loss.item())
"""
BEGINNING = """import deepspeed, torch
model = torch.nn.Linear(8, 8)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config="ds_config.json")
"""


def lay(folder: Path) -> dict[str, list[str]]:
    """Write what is checked into the folder; the commands by name."""
    (folder / "ds_config.json").write_text(json.dumps(DS_CONFIG, indent=2))
    line = "[2026-11-17 08:12:03,418] [INFO] [rank0] step {n}: loss 1.8421, lr 3.0e-4, samples/s 412.7\n"
    lines = [line.format(n=n) for n in range(10_000_000 // len(line))]
    (folder / "train.log").write_text("".join(lines))
    parts = [STEP.format(n=n) for n in range(5000 // STEP.count("\n"))]
    calls = [f"part_{n}(engine, [], 'cpu')\n" for n in range(len(parts))]
    (folder / "train.py").write_text("".join([BEGINNING, *parts, *calls]))
    check = [sys.executable, "-m", "dsaccum_helpers.commands", "check", "ds_config.json", "--processes", "8"]
    return {
        FLOOR: [sys.executable, "-c", "import json"],
        CONFIG: check,
        LOG: [*check, "train.log"],
        SCRIPT: [*check, "train.py"],
        CEILING: [sys.executable, "-c", ENGINE],
    }


def seconds(command: list[str], folder: Path) -> float:
    """Wall time of one process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(ROOT)
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    taken = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return taken


def measure(repeats: int, short: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Everything measured, raw: seconds by name. Short ones are started more often than long ones."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = lay(folder)
        for command in commands.values():
            seconds(command, folder)  # bytecode and file cache
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for repeat in range(repeats):
            say(f"check {repeat + 1}/{repeats}")
            for _ in range(3 if short else STARTS):
                for name in (FLOOR, CONFIG):
                    taken[name].append(seconds(commands[name], folder))
            for name in (LOG, SCRIPT, CEILING):
                taken[name].append(seconds(commands[name], folder))
    return {"seconds": taken}


def tables(raw: dict[str, Any]) -> list[Table]:
    """One table of whole processes."""
    floor = median(raw["seconds"][FLOOR])
    rows = [
        [name, str(len(taken)), spread(taken, 1000, 1), f"{median(taken) / floor:.1f}"]
        for name, taken in raw["seconds"].items()
    ]
    note = "Milliseconds of a whole process: median [smallest]."
    return [Table("From the command to its answer", note, ["command", "starts", "ms", "÷ floor"], rows)]


def goals(raw: dict[str, Any]) -> list[tuple[str, float, str, float]]:
    """What is wanted of a check: words, measured, ``>=`` or ``<=``, wanted."""
    middle = {name: median(taken) for name, taken in raw["seconds"].items()}
    return [
        (f"{CONFIG} ÷ {FLOOR}", middle[CONFIG] / middle[FLOOR], "<=", 3.0),
        (f"{CEILING} ÷ {CONFIG}", middle[CEILING] / middle[CONFIG], ">=", 50.0),
        (f"{LOG}, seconds", middle[LOG], "<=", 2.0),
        (f"{SCRIPT}, seconds", middle[SCRIPT], "<=", 2.0),
    ]
