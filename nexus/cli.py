"""How the commands end: 0 done or help, 1 a crash, 2 wrong input (one line that says what is allowed), 130 Ctrl-C."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

DONE, WRONG, STOPPED = 0, 2, 130


class Parser(argparse.ArgumentParser):
    """argparse with one line for wrong input, and help texts that keep their lines. `about` is a module's docstring."""

    def __init__(self, prog: str, about: str | None, example: str = ""):
        super().__init__(
            prog=prog,
            description=(about or "").strip(),
            epilog=f"example: {example}" if example else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; --help says more", file=sys.stderr)
        sys.exit(WRONG)


def run(main: Callable[[Sequence[str]], int], again: str = "") -> NoReturn:
    """Ends the process with what `main` makes of the command line. again: said after Ctrl-C."""
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
        sys.exit(code)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the interpreter's last flush works
        sys.exit(DONE)
    except KeyboardInterrupt:
        print(f"stopped{f'; {again}' if again else ''}", file=sys.stderr)
        sys.exit(STOPPED)
