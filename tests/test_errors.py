import os
import signal
import subprocess
import sys

import pytest
from conftest import ROOT

from engine.errors import Stopped, UserError, nearest, run_program


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("no\nsuch thing"), 2, "no such thing"),
        (PermissionError(13, "Permission denied", "out/x"), 2, "out/x: Permission denied"),
        (OSError(28, "No space left on device", "out/x"), 2, "out/x: No space left on device"),
        (MemoryError("80 GiB"), 2, "not enough memory: 80 GiB"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 2, "not enough memory"),
        (KeyboardInterrupt(), 130, ""),
        (Stopped(signal.SIGTERM), 143, ""),
        (Stopped(signal.SIGINT), 130, ""),
    ],
)
def test_how_programs_end(monkeypatch, capfd, error, code, message):
    monkeypatch.setattr(sys, "stdout", os.fdopen(os.dup(1), "w"))
    monkeypatch.setattr(sys, "stderr", os.fdopen(os.dup(2), "w"))

    def main(arguments):
        raise error

    with pytest.raises(SystemExit) as stop:
        run_program(main)
    sys.stderr.flush()
    assert stop.value.code == code
    err = capfd.readouterr().err
    assert message in err
    assert err.count("\n") == bool(message)


def test_bugs_keep_their_traceback(monkeypatch):
    monkeypatch.setattr(sys, "stdout", os.fdopen(os.dup(1), "w"))
    monkeypatch.setattr(sys, "stderr", os.fdopen(os.dup(2), "w"))
    with pytest.raises(RuntimeError, match="a bug"):
        run_program(lambda arguments: (_ for _ in ()).throw(RuntimeError("a bug")))


def test_nearest():
    assert nearest("n_layr", ["n_layer", "n_head"]) == "; did you mean n_layer?"
    assert nearest("zzz", ["n_layer"]) == ""


def test_sigterm_cleans_up():
    """`finally` blocks run, so that temporary files go, and the exit code is the shell's for SIGTERM."""
    code = """
import os, signal, sys
from engine.errors import run_program
def main(arguments):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    finally:
        print("cleaned up")
run_program(main)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (143, "cleaned up\n", "")
