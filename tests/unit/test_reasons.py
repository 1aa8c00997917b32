"""A right loop is told why it is right, with its lines; a wrong one is not praised."""

from __future__ import annotations

import pytest

from dsaccum_helpers import check

HEAD = """import deepspeed
from mine import Net, Data, mse
model_engine, _, loader, _ = deepspeed.initialize(model=Net(), training_data=Data(), config="ds.json")
"""
CONFIG = (
    "ds.json",
    '{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4, "gradient_clipping": 0.0}',
)
RIGHT = "for x, y in loader:\n    model_engine.backward(mse(model_engine(x), y))\n    model_engine.step()\n"


def test_the_loop_of_the_docs() -> None:
    report = check(CONFIG, ("train.py", HEAD + RIGHT), processes=2)
    assert report.verdict == "ok"
    assert report.reasons == [
        "model_engine.backward (train.py:5) and model_engine.step() (train.py:6) are called once for each micro-batch: "
        "the engine counts to 4 itself and divides by it."
    ]
    assert "Why this is right" in str(report)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "import accelerate\naccelerator = accelerate.Accelerator(gradient_accumulation_steps=4)\n"
            "from mine import Net, Adam, loader, mse\nnet = Net()\n"
            "net, opt, loader = accelerator.prepare(net, Adam(net), loader)\n"
            "for x, y in loader:\n    with accelerator.accumulate(net):\n"
            "        accelerator.backward(mse(net(x), y))\n        opt.step()\n        opt.zero_grad()\n",
            "at the end of the window only",
        ),
        (
            "import lightning as L\nclass Net(L.LightningModule):\n    def training_step(self, batch, i):\n"
            "        return mse(self.net(batch), batch)\n",
            "Lightning's Trainer undivided",
        ),
    ],
)
def test_frameworks_have_reasons_of_their_own(script: str, words: str) -> None:
    report = check(("train.py", script), processes=2, set={"loader.batch_size": 4})
    assert report.findings == []
    assert words in " ".join(report.reasons)


def test_a_wrong_loop_has_none() -> None:
    wrong = HEAD + RIGHT.replace("mse(model_engine(x), y)", "mse(model_engine(x), y) / 4")
    report = check(CONFIG, ("train.py", wrong), processes=2)
    assert report.verdict == "mismatch"
    assert report.reasons == []
