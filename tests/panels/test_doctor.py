"""Paste or choose what there is, check, read the report, keep the mended file; by field, by button, by plain call."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from traitlets import Bunch

from dsaccum_helpers import check
from dsaccum_helpers.panels import DoctorPanel, doctor

CONFIG = """{
  // for eight cards
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 4
}
"""
LAUNCH = "deepspeed --num_gpus=4 train.py --deepspeed_config ds_config.json\n"
SCRIPT = """import deepspeed

engine, _, loader, _ = deepspeed.initialize(model=model, training_data=data, config="ds_config.json")
for inputs, targets in loader:
    loss = criterion(engine(inputs), targets) / engine.gradient_accumulation_steps()
    engine.backward(loss)
    engine.step()
"""
LOG = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    engine, _, loader, _ = deepspeed.initialize(model=model, training_data=data, config="ds_config.json")
AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * \
gradient_acc_step * world_size 64 != 2 * 4 * 4
"""
CODE = "written-for-other-world-size"


def files_to_keep(panel: DoctorPanel) -> dict[str, bytes]:
    """The files behind the links."""
    links = re.findall(r'<a [^>]*download="([^"]*)" href="data:[^,]*;base64,([^"]*)"', panel.mended.value)
    return {unescape(name): b64decode(content) for name, content in links}


def test_what_is_typed_is_checked_by_the_button() -> None:
    panel = DoctorPanel()
    panel.evidence.fields["config"].value = CONFIG
    panel.evidence.fields["processes"].value = "4"
    assert panel.report is None, "nothing is checked before the press"
    panel.check_button.click()
    assert panel.report is not None
    assert panel.report.to_dict() == check(("ds_config.json", CONFIG), processes=4).to_dict()
    assert 'role="status"' in panel.status.value
    assert "Mismatch: 1 error." in panel.status.value
    assert f"<code>{CODE}</code>" in panel.result.value
    assert re.findall("<h[1-6]", panel.result.value + panel.mended.value) == ["<h2", "<h3", "<h3"]


def test_every_piece_reaches_the_doctor() -> None:
    panel = DoctorPanel()
    report = panel.run(
        config=CONFIG, launch=LAUNCH.replace("4", "8", 1), script=SCRIPT, log=LOG, versions="deepspeed==0.15.4\n"
    )
    assert report is not None
    names = ("ds_config.json", "launch.sh", "log.txt", "train.py", "requirements.txt")
    assert {name for name, _ in panel.evidence.files} == set(names)
    assert "loss-divided-twice" in report.codes
    assert report.to_dict() == check(*panel.evidence.files).to_dict()
    sources = {source.file for finding in report.findings for source in finding.where}
    assert {"train.py", "log.txt"} <= sources


def test_framework_and_sizes_reach_the_doctor() -> None:
    panel = DoctorPanel()
    sizes = {"processes": 8, "tensor_parallel": 2, "pipeline_parallel": 1, "sequence_parallel": 2}
    report = panel.run(config=CONFIG, framework="megatron", **sizes)
    assert report is not None
    assert report.framework == "megatron"
    assert report.batch["data_parallel_size"] == 2
    assert panel.evidence.more.value, "what was given is shown"
    assert panel.evidence.options == {"framework": "megatron", **sizes}


def test_the_mended_file_can_be_kept_and_is_right() -> None:
    panel = DoctorPanel()
    panel.run(config=CONFIG, launch=LAUNCH, log=LOG)
    kept = files_to_keep(panel)
    assert list(kept) == ["ds_config.json"]
    text = kept["ds_config.json"].decode()
    assert text == CONFIG.replace('_steps": 4', '_steps": 8'), "comments and order stay"
    assert check(("ds_config.json", text), processes=4).verdict == "ok"
    assert "+  &quot;gradient_accumulation_steps&quot;: 8" in panel.mended.value
    assert "checked again: OK" in panel.mended.value
    assert '+  "gradient_accumulation_steps": 8' in panel.text


def test_another_fix_can_be_chosen() -> None:
    panel = DoctorPanel()
    panel.run(config=CONFIG, launch=LAUNCH)
    seen = set()
    for number, name in enumerate(panel.choice.options):
        panel.choice.value = number
        kept = files_to_keep(panel)
        if "processes" in name:
            assert kept == {}
            assert f"To be done by hand: {name}" in panel.mended.value
            assert panel.repair is not None
        else:
            seen.add(kept["ds_config.json"])
            assert check(("ds_config.json", kept["ds_config.json"]), processes=4).verdict == "ok"
    assert len(seen) == len(panel.choice.options) - 1 >= 2
    panel.run(processes=8, launch="")
    assert list(panel.choice.options) == []


def test_a_wrong_loop_is_mended_by_hand() -> None:
    panel = DoctorPanel()
    report = panel.run(config=CONFIG, script=SCRIPT, processes=8)
    assert report is not None
    assert report.codes[0] == "loss-divided-twice"
    assert files_to_keep(panel) == {}
    assert "No configuration given here" in panel.mended.value
    assert "train.py:5" in panel.result.value


def test_what_is_right_is_said_to_be_right() -> None:
    panel = DoctorPanel()
    report = panel.run(config=CONFIG, script=SCRIPT.replace(" / engine.gradient_accumulation_steps()", ""), processes=8)
    assert report is not None
    assert report.verdict == "ok"
    assert "OK: nothing wrong found." in panel.status.value
    assert panel.mended.value == ""


def uploaded(name: str, content: bytes) -> Bunch:
    """What the front end sends of a chosen file."""
    date = datetime(2026, 12, 1, tzinfo=UTC)
    return Bunch(name=name, type="", size=len(content), content=memoryview(content), last_modified=date)


def test_chosen_files_keep_their_names_and_encoding() -> None:
    panel = DoctorPanel()
    marked = CONFIG.replace("\n", "\r\n").encode("utf-16")
    panel.evidence.upload.value = (uploaded("my_ds.json", marked), uploaded("train.py", SCRIPT.encode()))
    assert "my_ds.json, train.py" in panel.evidence.chosen.value
    report = panel.run(script=SCRIPT, processes=4)
    assert report is not None
    assert [name for name, _ in panel.evidence.files] == ["my_ds.json", "train.py", "pasted-train.py"]
    assert CODE in report.codes
    kept = files_to_keep(panel)["my_ds.json"]
    assert kept.decode("utf-16") == CONFIG.replace('_steps": 4', '_steps": 8').replace("\n", "\r\n")


def test_files_of_a_plain_call(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(CONFIG)
    panel = DoctorPanel(path, processes=4)
    report = panel.run()
    assert report is not None
    assert report.codes == [CODE]
    assert list(files_to_keep(panel)) == ["ds_config.json"]
    assert path.read_text() == CONFIG, "nothing is written"
    report = panel.run(json.loads(re.sub("//.*", "", CONFIG)))
    assert report is not None
    assert report.codes == [CODE]
    assert panel.evidence.given == [json.loads(re.sub("//.*", "", CONFIG))]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (CONFIG, "ds_config.json"),
        ("// ours\n" + CONFIG, "ds_config.json"),
        ("\ufeff" + CONFIG, "ds_config.json"),
        ("# ours\ncompute_environment: LOCAL_MACHINE\n", "config.yaml"),
        ("---\nper_device_train_batch_size: 4\n", "config.yaml"),
        ("My run fails with this:\n\n```json\n" + CONFIG + "```\n", "config"),
        ("ds_config = {'train_batch_size': 64}\n", "config"),
    ],
)
def test_a_pasted_config_is_named_by_what_it_is(text: str, name: str) -> None:
    panel = DoctorPanel()
    panel.evidence.fields["config"].value = text
    assert panel.evidence.files == [(name, text)]


def test_a_posted_question_is_taken_apart() -> None:
    panel = DoctorPanel()
    report = panel.run(log=f"It fails:\n\n```json\n{CONFIG}```\n\n```bash\n{LAUNCH}```\n\n```\n{LOG}```\n")
    assert report is not None
    assert report.codes == [CODE]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "There is nothing to check yet"),
        ({"config": "  \n"}, "There is nothing to check yet"),
        ({"config": CONFIG, "processes": 2.5}, "processes is 2.5"),
        ({"config": CONFIG, "processes": "many"}, "processes is 'many'"),
        ({"config": CONFIG, "processes": 0}, "processes is 0"),
        ({"config": CONFIG, "processes": 10**5000}, "processes is '9999"),
        ({"config": CONFIG, "tensor_parallel": -1}, "tensor_parallel is -1"),
        ({"config": CONFIG, "framework": "keras"}, "framework is 'keras'"),
        ({"config": CONFIG, "gpus": 4}, "gpus is nothing to give"),
        ({"config": "\x00\x01\x02" * 50}, "is binary"),
    ],
)
def test_bad_input_gets_one_clear_sentence(
    given: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    panel = DoctorPanel()
    assert panel.run(**given) is None
    printed = capsys.readouterr()
    assert said in printed.out
    assert "Smallest fix: " in printed.out
    assert printed.out.count("\n") == 1
    assert printed.err == ""
    assert panel.report is None
    assert panel.result.value == panel.mended.value == ""
    report = panel.run(config=CONFIG, processes=4, tensor_parallel=None)
    assert report is not None
    assert report.codes == [CODE], "the panel goes on working"


def test_an_error_is_shown_and_the_old_report_is_gone() -> None:
    panel = DoctorPanel()
    panel.run(config=CONFIG, processes=4)
    panel.evidence.fields["processes"].value = "2.5"
    assert "Press Check again" in panel.status.value
    panel.check_button.click()
    assert panel.status.value.count('role="alert"') == 1
    assert panel.result.value == panel.mended.value == ""
    assert list(panel.choice.options) == []
    panel.clear_button.click()
    assert panel.status.value == ""
    assert panel.evidence.files == []
    assert panel.evidence.options == {}


def test_what_nobody_foresaw_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("first\nsecond")

    monkeypatch.setattr(doctor, "check", broken)
    panel = DoctorPanel(config=CONFIG)
    panel.check_button.click()
    assert "Something unexpected went wrong (RuntimeError: first second). Smallest fix:" in panel.status.value


def test_nothing_pasted_becomes_markup() -> None:
    panel = DoctorPanel()
    bad = "<img src=x onerror=alert(1)>"
    panel.run((f"{bad}.json", CONFIG), config=CONFIG.replace("eight cards", bad), processes=4)
    shown = panel.status.value + panel.result.value + panel.mended.value
    assert "<img" not in shown
    assert "&lt;img" in shown


def test_panel_shows_itself_as_widget_and_as_text() -> None:
    panel = DoctorPanel()
    bundle = panel._repr_mimebundle_()
    assert "Smallest fix: press Check." in bundle["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" in bundle
    panel.run(config=CONFIG, processes=4)
    assert CODE in panel._repr_mimebundle_()["text/plain"]
