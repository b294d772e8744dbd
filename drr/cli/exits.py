"""How a command ends: exit codes, and every foreseen error as one line on stderr."""

from __future__ import annotations

import sys
import traceback
from enum import IntEnum
from typing import Any, Final

import typer
from typer.core import TyperGroup

from drr.errors import (
    DrrError,
    InvalidValue,
    ReportUnavailable,
    ServerFailed,
    ServerNotFound,
    StoreNotPrepared,
    StoreUnavailable,
    StoreUnsupported,
    UnknownBackend,
)


class Exit(IntEnum):
    """Exit codes of all commands."""

    OK = 0
    FAILED = 1
    """A job failed or did not end in time, an expectation was not met, or the store refused."""
    USAGE = 2
    """An option, an argument or a value is wrong."""
    NO_STORE = 3
    """The store cannot be reached, or cannot be used as it is."""
    INTERRUPTED = 130


EXIT_CODES: Final = """\
Exit codes: 0 done; 1 a job failed or the operation was refused; 2 wrong usage or a value that is not allowed;
3 the store cannot be reached or used; 130 interrupted. Errors are one line on stderr; `drr --debug COMMAND ...`
shows the traceback as well."""


class DrrGroup(TyperGroup):
    """The commands, with `DrrError` turned into a line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except DrrError as error:
            if ctx.params.get("debug"):
                traceback.print_exception(error, file=sys.stderr)
            complain(str(error))
            raise typer.Exit(exit_code(error)) from None
        except KeyboardInterrupt:
            raise typer.Exit(Exit.INTERRUPTED) from None


def complain(message: str) -> None:
    """Print one line on stderr, whatever the message holds."""
    typer.echo("drr: " + " / ".join(message.splitlines()), err=True)


def exit_code(error: DrrError) -> Exit:
    """Return the exit code that stands for an error."""
    if isinstance(error, InvalidValue | UnknownBackend | ReportUnavailable):
        return Exit.USAGE
    if isinstance(error, StoreUnavailable | StoreNotPrepared | StoreUnsupported | ServerFailed | ServerNotFound):
        return Exit.NO_STORE
    return Exit.FAILED
