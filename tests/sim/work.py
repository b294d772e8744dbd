"""Counting work instead of seconds: the number of bytecodes that a call executes.

It is the same on a busy machine and on an idle one, so a test can compare the cost of decisions at different
sizes exactly. What happens inside C functions is not seen; the core's are operations on heaps, deques and
dictionaries of known cost.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_bytecodes(call: Callable[[], object]) -> int:
    """Return how many bytecodes ``call`` executes, functions called by it included."""
    executed = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal executed
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            executed += 1
        return trace

    before, here = sys.gettrace(), sys._getframe()
    here.f_trace_opcodes = True  # CPython 3.12 and 3.13 look at this when tracing begins, not when it is set
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        here.f_trace_opcodes = False
    return executed
