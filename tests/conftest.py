"""Generated tests try the same values for the same commit: who changes a line is told of that line's faults only.

Other values, and new ones each time: ``pytest --hypothesis-profile=default tests/unit``.
"""

from hypothesis import settings

settings.register_profile("suite", derandomize=True)
settings.load_profile("suite")
