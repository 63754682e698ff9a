"""The parts of compare.py: command line, C interface, cases, contestants, guard, clock, tables."""


class CannotRun(Exception):
    """Why nothing can be timed or shown, in one line; compare.py ends with exit code 2."""


def first_line(error):
    """An error in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
