"""The errors a learner can meet.

::

    DsaccumError            base of them all, a ValueError
    ├── BatchError          batch.py    three numbers and a world size that DeepSpeed cannot train with
    ├── SettingError        setting.py  a run that was asked for with an impossible setting
    └── RunError            training    a run that could not start, or ended before its last update

Each is raised with one clear message that ends in the smallest remedy, so that catching ``DsaccumError`` and printing
it is all a notebook, a panel or the command line has to do.
"""


class DsaccumError(ValueError):
    """Something the learner gave or ran cannot work; ``str(error)`` says why and ends in the smallest remedy."""

    def _render_traceback_(self) -> list[str]:
        # What IPython shows in place of a traceback: where in our code it was raised tells a learner nothing.
        return [f"{type(self).__name__}: {self}"]
