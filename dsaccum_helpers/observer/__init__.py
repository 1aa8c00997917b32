"""Watches a live DeepSpeed engine and says where its accumulation is wrong. Changes nothing in the training.

    with watch(engine, loader=loader) as w:
        train(engine, loader)
    w.report()

``watch`` hangs hooks into the engine, ``Watch`` holds what they saw and takes them out again. The numeric signals come
first: the weights with which losses enter an update, and the gradient that reaches the optimizer. Counts of calls only
give a wrong number its name; alone they are no error.
"""

from __future__ import annotations

from dsaccum_helpers.observer.session import Watch, watch

__all__ = ["Watch", "watch"]
