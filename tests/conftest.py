"""What every test relies on, however the suite was started.

Generated tests try the same values for the same commit: who changes a line is told of that line's faults only. Other
values, and new ones each time: ``pytest --hypothesis-profile=default tests/unit``.
"""

import signal

from hypothesis import settings

settings.register_profile("suite", derandomize=True)
settings.load_profile("suite")

# A shell starts what runs in its background with Ctrl-C ignored, and so would be every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
