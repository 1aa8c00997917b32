"""The loader that feeds the training: when a micro-batch is read, and when an epoch has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from dsaccum_helpers.observer.hooks import SHARED, Hooks
from dsaccum_helpers.observer.probe import Probe
from dsaccum_helpers.observer.tensors import samples_of

#: Set in the flags of a class that can be changed; those of Python itself cannot.
_HEAP_TYPE = 1 << 9
_following: dict[type, tuple[Hooks, list[Feed]]] = {}


class Feed:
    """Follows one loader, or each DataLoader of the process where none is named.

    The class's ``__iter__`` is replaced while it watches: Python looks it up there and nowhere else. What cannot be
    replaced (a list, a generator) is left alone. ``epoch`` is called when a loader that has trained begins anew: by
    then also the last micro-batch of a loader that reads ahead is trained.
    """

    def __init__(self, probe: Probe, loader: Any, epoch: Callable[[], None]) -> None:
        self.probe, self.loader, self.epoch = probe, loader, epoch
        if loader is not None and hasattr(loader, "__next__"):  # it is its own iterator, around a DataLoader
            self.loader = getattr(loader, "dataloader", None)
        self.owner = torch.utils.data.DataLoader if self.loader is None else type(self.loader)
        self.trained: set[int] = set()
        self.running = False

    def start(self) -> None:
        """Hang the hook in, one for all feeds of a class."""
        self.running = True
        if not (self.owner.__flags__ & _HEAP_TYPE and hasattr(self.owner, "__iter__")):
            return
        if self.owner not in _following:
            hooks, feeds = _following[self.owner] = Hooks(), []
            hooks.wrap(self.owner, "__iter__", lambda iterate: _followed(iterate, feeds))
        _following[self.owner][1].append(self)

    def stop(self) -> None:
        """Take the hook out, where no other feed needs it."""
        self.running = False
        hooks, feeds = _following.get(self.owner, (None, []))
        if self in feeds:
            feeds.remove(self)
        if hooks is not None and not feeds:
            hooks.remove()
            del _following[self.owner]

    def begins(self, loader: Any) -> bool:
        """A loader is iterated over: is it one to follow?"""
        if self.loader is not None and loader is not self.loader:
            return False
        if self.trained == {id(loader)}:  # of several loaders, one may begin anew in the middle of a window
            self.epoch()
        return True


def _followed(iterate: Any, feeds: list[Feed]) -> Any:
    def wrapped(loader: Any) -> Any:
        iterator = iterate(loader)
        following = [feed for feed in feeds if feed.begins(loader)]
        return _Reading(iterator, id(loader), following) if following and iterator is not loader else iterator

    return wrapped


class _Reading:
    """An iterator that passes everything through and tells the feeds."""

    def __init__(self, iterator: Any, loader: int, feeds: list[Feed]) -> None:
        self._iterator, self._loader, self._feeds = iterator, loader, feeds
        self._read = False
        self._backwards = SHARED.backwards

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._feeds = [feed for feed in self._feeds if feed.running]  # an iterator outlives a watch
        trained = self._read and SHARED.backwards > self._backwards
        for feed in self._feeds:
            if trained:
                feed.trained.add(self._loader)
            elif self._read and feed.probe.pending and (self._loader in feed.trained or not feed.trained):
                # A loader that has never trained, beside one that has, is for validation.
                feed.probe.left_behind()
        self._backwards, self._read = SHARED.backwards, True
        item = next(self._iterator)
        for feed in self._feeds:
            feed.probe.items += 1
            feed.probe.read = samples_of((item,), feed.probe.engine.train_micro_batch_size_per_gpu())
        return item

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)
