"""The tasks of a process in the order of their launches, which stream waits for which, and where steps end."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from dataclasses import replace

from softnpu.plan.recording import FORWARD, Steps
from softnpu.plan.tasks import Task

Place = tuple[int, int]  # device and stream
Cut = tuple[int, int]  # number of tasks before, and the place in the order


class Log:
    """Tasks have numbers from 0 on; those before the last complete step are forgotten when the next one ends."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.phase = FORWARD
        self._order = itertools.count(1)
        self.now = 0
        self._tasks: list[Task] = []
        self._base = 0
        self._last: dict[Place, int] = {}
        self._awaited: dict[Place, set[int]] = {}
        self._writers: dict[int, tuple[int, Place]] = {}
        self._first: Cut | None = None
        self._cuts: dict[str, list[Cut]] = {"optimizer": [], "profiler": []}
        self._counts = {"optimizer": 0, "profiler": 0}
        self._ends: dict[str, list[int]] = {"optimizer": [], "profiler": []}
        self._open: Cut | None = (
            None  # the end of an optimizer's step that may not be the last one of its step
        )

    def tick(self) -> int:
        """The next place in the order of allocations and marks."""
        self.now = next(self._order)
        return self.now

    @property
    def launches(self) -> int:
        return self._base + len(self._tasks)

    # --- tasks --------------------------------------------------------------------------------------------------

    def add(self, task: Task, reads: Iterable[int] = (), writes: Iterable[int] = ()) -> int:
        """Appends a task. `reads`, `writes`: addresses of storages; what another stream wrote there comes first, since a
        program without races waits for it in some way."""
        place = (task.device, task.stream)
        with self.lock:
            number = self.launches
            waits = self._awaited.pop(place, set()) | {w + self._base for w in task.waits}
            for address in reads:
                writer = self._writers.get(address)
                if writer is not None and writer[1] != place:
                    waits.add(writer[0])
            for address in writes:
                self._writers[address] = (number, place)
            known = tuple(sorted(w - self._base for w in waits if w >= self._base))
            self._tasks.append(replace(task, waits=known, phase=self.phase))
            self._last[place] = number
            return number

    def last_of(self, place: Place) -> int | None:
        """The number of the last task of a stream."""
        return self._last.get(place)

    def writer_of(self, address: int) -> int | None:
        """The number of the task that wrote a storage last."""
        return self._writers.get(address, (None, None))[0]

    def wait(self, place: Place, number: int | None) -> None:
        """What the stream does next waits for that task."""
        with self.lock:
            if number is not None and self._last.get(place) != number:
                self._awaited.setdefault(place, set()).add(number)

    def host_waits(self, number: int | None) -> None:
        """The host waits for that task before it goes on."""
        with self.lock:
            if number is not None and number >= self._base:
                index = number - self._base
                self._tasks[index] = replace(self._tasks[index], host_waits=True)

    def host_waits_for_device(self, device: int) -> None:
        for place, number in list(self._last.items()):
            if place[0] == device:
                self.host_waits(number)

    # --- steps --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The first call of a module: what came before belongs to no step."""
        if self._first is None:
            self._first = (self.launches, self.now)

    def optimizer_ends(self) -> None:
        """An optimizer's step ended. With several optimizers the last one before the next backward pass ends the step."""
        self._open = (self.launches, self.tick())

    def backward_begins(self) -> None:
        self._commit()

    def profiler_steps(self) -> None:
        self._cut("profiler", (self.launches, self.tick()))

    def _commit(self) -> None:
        if self._open is not None:
            cut, self._open = self._open, None
            self._cut("optimizer", cut)

    def _cut(self, kind: str, cut: Cut) -> None:
        with self.lock:
            self._cuts[kind] = [*self._cuts[kind][-1:], cut]
            self._counts[kind] += 1
            self._ends[kind].append(cut[1])
            begins = [cuts[-2][0] for cuts in self._cuts.values() if len(cuts) > 1]
            single = any(len(cuts) == 1 for cuts in self._cuts.values())
            if begins and not single:
                self._forget(min(begins))

    def _forget(self, before: int) -> None:
        gone = before - self._base
        if gone > 0:
            kept = self._tasks[gone:]
            self._tasks = [
                replace(t, waits=tuple(w - gone for w in t.waits if w >= gone)) for t in kept
            ]
            self._base = before

    def steps(self) -> Steps:
        """Which steps there were so far, by the profiler if the program calls its step, else by optimizers."""
        kind = self._kind()
        first = self._first[1] if self._first is not None else 0
        if kind == "program":
            return Steps("program", 1 if self.launches else 0, first, [self.now + 1])
        return Steps(kind, self._counts[kind], first, list(self._ends[kind]))

    def step_tasks(self) -> list[Task]:
        """The tasks of the last complete step; of the program from its first module on, if it has no steps."""
        kind = self._kind()
        first = self._first[0] if self._first is not None else 0
        begin, end = first, self.launches
        if kind != "program":
            cuts = self._cuts[kind]
            end = cuts[-1][0]
            begin = cuts[-2][0] if len(cuts) > 1 else min(first, end)
        begin, end = begin - self._base, end - self._base
        return [
            replace(t, waits=tuple(w - begin for w in t.waits if w >= begin))
            for t in self._tasks[max(begin, 0) : end]
        ]

    def finish(self) -> None:
        self._commit()

    def _kind(self) -> str:
        return next((k for k in ("profiler", "optimizer") if self._cuts[k]), "program")
