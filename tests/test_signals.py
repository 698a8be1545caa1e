import signal

import pytest

from engine.signals import StopRequest


def test_the_first_signal_is_a_request():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert stop.signum is None
        signal.raise_signal(signal.SIGTERM)
        assert stop.signum == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) == before  # the second acts at once
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
