"""Errors that say what is wrong, what was received, where, and what to do about it."""


class AkoError(Exception):
    """Base of every error Ako raises on purpose.

    Args:
        what: the rule that was broken, in words.
        got: the value received, or None when there is none to show.
        where: the file, operator or node concerned.
        fix: what the user can do.
    """

    exit_code = 2

    def __init__(self, what: str, *, got: object = None, where: str = "", fix: str = "") -> None:
        self.what, self.got, self.where, self.fix = what, got, where, fix
        message = what
        if got is not None:
            message += f" (got {got})"
        if where:
            message += f" at {where}"
        if fix:
            message += f"; {fix}"
        super().__init__(message)


class DataError(AkoError):
    """A data set is missing, damaged or not what its name says."""
