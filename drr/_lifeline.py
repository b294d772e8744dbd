"""Becomes a server that does not outlive the process that wanted it. Run as a script, never imported by drr.

``python -I -S _lifeline.py MODE PARENT BINARY ARGUMENT...`` ties its own life to that of ``PARENT`` and then
replaces itself by ``BINARY``, so that the process the parent started *is* the server: one pid, one exit
status, no process in between. Doing it here, between fork and exec of a fresh interpreter with one thread,
avoids code that runs in a forked copy of a process with many threads (what ``preexec_fn`` would be).

Two modes:

``signal``  Linux: the kernel sends SIGTERM when the *thread* that started us ends (``PR_SET_PDEATHSIG``; it
            survives exec). The supervisor therefore starts servers from a thread that lives as long as they do.
``pipe``    elsewhere: a child that stays behind reads standard input, a pipe whose other end only the parent
            holds, and sends SIGTERM at its end. The server is the child's parent, so a changed parent pid means
            that the server has gone and that its pid may belong to somebody else by now.

SIGTERM and not SIGKILL, because the server then writes out its log of the last second and loses nothing.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _tie_by_signal(parent: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died before the call: no signal will come any more
        sys.exit(1)


def _tie_by_pipe(parent: int) -> None:
    server = os.getpid()
    if os.fork():
        return
    os.setsid()  # what is sent to the server's group is not for us
    while os.read(0, 512):
        pass
    if os.getppid() == server:
        os.kill(server, signal.SIGTERM)
    os._exit(0)


def main(arguments: list[str]) -> None:
    """Tie this process to its parent and become the server."""
    mode, parent, *command = arguments
    {"signal": _tie_by_signal, "pipe": _tie_by_pipe}[mode](int(parent))
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
