"""How a program ends when something is wrong: one line on stderr, an exit code, no traceback."""

import os
import signal
import sys
from collections.abc import Callable
from difflib import get_close_matches


class UserError(Exception):
    """A mistake of the user's. Its text is one line that says what is wrong, where, and what would be right."""


class Stopped(Exception):
    """A signal ended the run after its state was saved."""

    def __init__(self, signum: int) -> None:
        self.signum = signum


def nearest(name: str, known: list[str]) -> str:
    """ "; did you mean X?", or nothing when no known name is close."""
    match = get_close_matches(name, known, n=1)
    return f"; did you mean {match[0]}?" if match else ""


def run_program(main: Callable[[list[str]], None]) -> None:
    """Run main(arguments) and leave with 0; 2 for a mistake of the user's or a file that cannot be read or written;
    130, 141 or 143 when stopped by Ctrl-C, a closed pipe or SIGTERM. Any other exception is a bug of ours and keeps its traceback."""
    program = os.path.basename(sys.argv[0])
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed by the shell
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # whatever the locale says
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))  # not at once: temporary files go first
    try:
        main(sys.argv[1:])
        if sys.stdout:
            sys.stdout.flush()
    except Stopped as stop:
        sys.exit(128 + stop.signum)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has left, as in `python sample.py | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except UserError as error:
        fail(program, str(error))
    except OSError as error:
        fail(program, f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except MemoryError as error:
        fail(program, f"not enough memory{f': {error}' if str(error) else ''}; smaller sizes would fit")
    except RuntimeError as error:
        if one_of_several() and "closed by peer" in str(error):
            sys.exit(2)  # another process has met a mistake, and says so
        if "can't allocate memory" not in str(error) and "out of memory" not in str(error):
            raise
        fail(program, f"not enough memory: {str(error).splitlines()[0]}; a smaller model or batch_size would fit")


def fail(program: str, message: str) -> None:
    """Leave with exit code 2 and the message, folded to one line. Several processes make the same mistake: the first one says so."""
    if not one_of_several():
        print(f"{program}: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def one_of_several() -> bool:
    """Whether this is a process of torchrun's that has met the others, and not the first."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_initialized() and distributed.get_rank() > 0
