"""The scheduler core: pure, without I/O or clock."""


def is_compiled() -> bool:
    """Return whether this is the compiled build of the core (docs/decisions/0022-compiled-core.md)."""
    from drr.core import scheduler

    return not scheduler.__file__.endswith(".py")
