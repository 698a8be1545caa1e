"""Ctrl-C and SIGTERM as a request that the training loop reads between two steps."""

import signal
from types import FrameType


class StopRequest:
    """`with StopRequest() as stop:` and `stop.signum` is None until a signal comes. A second one acts at once."""

    def __enter__(self) -> "StopRequest":
        self.signum: int | None = None
        self.before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        self.__exit__()

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
