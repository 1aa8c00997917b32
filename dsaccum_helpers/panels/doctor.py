"""The doctor's panel: give what there is of a job, press Check, read what is wrong, and keep the mended file."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets

from dsaccum_helpers.doctor import check, mend_files
from dsaccum_helpers.errors import DsaccumError
from dsaccum_helpers.findings import Report
from dsaccum_helpers.findings.html import as_html
from dsaccum_helpers.findings.text import headline
from dsaccum_helpers.mend.repair import Repair
from dsaccum_helpers.panels.choice_list import ChoiceList
from dsaccum_helpers.panels.evidence import EvidenceFields
from dsaccum_helpers.panels.fields import message, mimebundle
from dsaccum_helpers.panels.key_guard import guarded
from dsaccum_helpers.panels.mended import BY_HAND, mended

INTRODUCTION = (
    "<p>Give what you have; one piece is enough, more pieces say more. Nothing of it is run, or sent to anyone. "
    "Files may have 10 MB in all; of a longer log, give the end.</p>"  # what Jupyter's server takes in one message
)
NOTHING_GIVEN = (
    "There is nothing to check yet (files of more than 10 MB do not arrive). "
    "Smallest fix: paste a configuration, a command, a log or a script."
)
NOT_CHECKED = "Nothing has been checked yet. Smallest fix: press Check."
CHANGED = "Something was changed since. Press Check again."


class DoctorPanel:
    """Paste or choose a configuration, a launch command, a log or a script, press Check, and read the report.

    ``run(**changes)`` is the same without a front end. ``report`` is the last one, ``repair`` holds the mended files.
    """

    def __init__(self, *files: Any, **given: Any) -> None:
        self.report: Report | None = None
        self.repair: Repair | None = None
        self._files: list[Any] = []  # what was read for the report
        self._options: dict[str, Any] = {}
        self._busy = False
        self.evidence = EvidenceFields()
        self.check_button = widgets.Button(description="Check", button_style="primary")
        self.clear_button = widgets.Button(description="Clear")
        self.status, self.result, self.mended = (widgets.HTML() for _ in range(3))
        self.choice = ChoiceList(description="Which fix to write into the file")
        self.check_button.on_click(self._on_check)
        self.clear_button.on_click(self._on_clear)
        self.evidence.observe(self._changed)
        self.choice.observe(self._chosen, "value")
        buttons = widgets.HBox([self.check_button, self.clear_button])
        shown = [self.status, self.result, self.choice, self.mended]
        self.widget = guarded(widgets.VBox([widgets.HTML(INTRODUCTION), self.evidence.widget, buttons, *shown]))
        if files or given:
            self.evidence.write(files, given)

    def run(self, *files: Any, **changes: Any) -> Report | None:
        """Fill fields by name, check, and return the ``Report``.

        ``files``: as for ``check``, in place of those given before. ``changes``: ``config``, ``launch``, ``log``,
        ``script`` and ``versions`` are texts; ``framework``, ``processes``, ``tensor_parallel``, ``pipeline_parallel``
        and ``sequence_parallel`` are as for ``check``. What cannot be read is said in one printed sentence, and
        ``None`` is returned.
        """
        try:
            self.evidence.write(files, changes)
        except DsaccumError as error:
            print(error)
            return None
        problem = self._check()
        if problem:
            print(problem)
        return self.report

    @property
    def text(self) -> str:
        """All that the panel shows of its last check, as text."""
        if self.report is None:
            return NOT_CHECKED
        diffs = [self.repair.diff(name) for name in self.repair.texts] if self.repair else []
        return "\n".join([str(self.report), *diffs])

    def _on_check(self, _: Any) -> None:
        self._check()

    def _on_clear(self, _: Any) -> None:
        self.evidence.clear()
        self._forget()
        self._say("")

    def _check(self) -> str:
        """Read and judge what is given, and show it; what went wrong, as one sentence."""
        self._forget()
        self._files, self._options = self.evidence.files, self.evidence.options
        self._say("Checking.")
        try:
            if not self._files:
                raise DsaccumError(NOTHING_GIVEN)
            self.report = check(*self._files, **self._options)
            self.repair = mend_files(*self._files, **self._options)
        except Exception as error:  # whatever it is, the panel says it: a callback's traceback would be seen by nobody
            self._forget()
            problem = _sentence(error)
            self._say(problem, wrong=True)
            return problem
        self._show(self.report, self.repair)
        return ""

    def _forget(self) -> None:
        self.report = self.repair = None
        self.result.value = self.mended.value = ""
        self._offer([], 0)

    def _show(self, report: Report, repair: Repair) -> None:
        faults = f" A fault of dsaccum itself: {'; '.join(report.faults)}." if report.faults else ""
        self._say(headline(report) + faults)
        self.result.value = as_html(report)
        if not report.findings:
            return
        self.mended.value = mended(repair)
        if repair.done:
            code, written = repair.done[0]
            fixes = next(finding.fixes for finding in report.findings if finding.code == code)
            names = [fix.description for fix in fixes if fix.set]
            self._offer(names, names.index(written.description) if written.description in names else 0)

    def _offer(self, names: list[str], number: int) -> None:
        self._busy = True
        self.choice.options, self.choice.value = names, number
        self._busy = False

    def _chosen(self, change: Any) -> None:
        """Another fix was chosen: write that one into the file."""
        if self._busy or self.report is None or change["new"] >= len(self.choice.options):
            return
        name = self.choice.options[change["new"]]
        try:
            self.repair = mend_files(*self._files, prefer=[name], **self._options)
        except Exception as error:  # as in _check
            self._say(_sentence(error), wrong=True)
            return
        if name in [fix.description for _, fix in self.repair.done]:
            self.mended.value = mended(self.repair)
            self._say(f"Written: {name}")
        else:
            self.mended.value = message(f"To be done by hand: {name} {BY_HAND}")
            self._say("")

    def _changed(self, _: Any) -> None:
        """Something was typed or chosen; the report speaks of what was there before."""
        if self.report is not None:
            self._say(CHANGED)

    def _say(self, text: str, *, wrong: bool = False) -> None:
        self.status.value = message(text, wrong=wrong)

    def _repr_mimebundle_(self, **keywords: Any) -> dict[str, Any]:
        return mimebundle(self.widget, self.text, **keywords)


def _sentence(error: Exception) -> str:
    """What a learner reads of an error: its own message, or one sentence for what nobody foresaw."""
    if isinstance(error, DsaccumError):
        return str(error)
    words = " ".join(str(error).split())[:200]
    return f"Something unexpected went wrong ({type(error).__name__}: {words}). Smallest fix: leave out one piece."
