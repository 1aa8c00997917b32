"""Panels of the course: thin, one a file; they draw and keep state, and compute nothing."""

from dsaccum_helpers.panels.batch_explorer import BatchExplorer
from dsaccum_helpers.panels.compare import ComparePanel
from dsaccum_helpers.panels.doctor import DoctorPanel
from dsaccum_helpers.panels.guess import GuessPanel

__all__ = ["BatchExplorer", "ComparePanel", "DoctorPanel", "GuessPanel"]
