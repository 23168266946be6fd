"""Progress and time limit of the search for a coupling."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Item = TypeVar("Item")
# Time between two reports of one stage, in seconds.
SECONDS_PER_REPORT = 0.2
# Largest work of a search, in answers that are compared, which does not depend on the speed of a machine.
MAX_WORK = 5e8


@dataclass(kw_only=True)
class SearchProgress:
    """Reports of a search, and the time at which it ends without a result.

    ``report`` receives a dictionary with the ``stage`` in words, the number of sets that are ``done``, and their
    ``total``. ``deadline`` is a time of ``time.monotonic``. ``work`` counts the compared answers, up to ``max_work``.
    """

    report: Callable[[dict[str, Any]], None] | None = None
    deadline: float = math.inf
    max_work: float = MAX_WORK
    work: float = 0
    last_report: float = -math.inf

    @property
    def is_over(self) -> bool:
        """True after the limit of time or work."""
        return time.monotonic() > self.deadline or self.work > self.max_work

    def track(self, items: Sequence[Item], stage: str) -> Iterator[Item]:
        """Yield the items of a stage with reports, up to the limit of time or work."""
        for done, item in enumerate(items):
            if self.is_over:
                return
            now = time.monotonic()
            if self.report is not None and now - self.last_report >= SECONDS_PER_REPORT:
                self.last_report = now
                self.report({"stage": stage, "done": done, "total": len(items)})
            yield item
