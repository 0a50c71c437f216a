"""One exception class for each kind of failure; each is also the built-in exception that a Python programmer would expect."""

from __future__ import annotations


class Error(Exception):
    """What every failure of Verglas is.

    Attributes
    ----------
    code : str
        The kind of failure, such as ``"invalid_call"``.
    rule : str
        Stable id of the rule that was broken, such as ``"call.extent"``.
    operand : str
        Role and name of the operand whose fault it is; may be empty.
    got, want : str
        What was found and what would have been right; may be empty.
    """

    code: str
    rule: str
    operand: str
    got: str
    want: str

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class InvalidGraphError(Error, ValueError):
    """The description is wrong in itself."""


class InvalidCallError(Error, ValueError):
    """A buffer, stream or workspace breaks a rule of the plan; nothing was written."""


class UnsupportedError(Error, NotImplementedError):
    """Legal, but no engine serves it; the text lists what each engine said."""


class CompileError(Error, RuntimeError):
    """A kernel could not be generated, compiled or loaded."""


class DriverError(Error, RuntimeError):
    """A call of the GPU's driver failed; the text has the driver's own name for it."""


class IoError(Error, OSError):
    """A file could not be read or written, or its content is not what it claims."""


class OutOfMemoryError(Error, MemoryError):
    """There is not enough memory."""


class InternalError(Error, RuntimeError):
    """A defect of Verglas: please report it with the text."""


class FrozenError(InvalidGraphError, RuntimeError):
    """A graph was changed after it was planned, or a step of its life was taken out of order."""


class PlanIndexError(InvalidGraphError, IndexError):
    """There is no plan at that index."""


class NotABufferError(InvalidCallError, TypeError):
    """An object was passed that is no array, no address and no scalar."""


_BY_CODE = {
    "invalid_graph": InvalidGraphError,
    "invalid_call": InvalidCallError,
    "unsupported": UnsupportedError,
    "compile_failed": CompileError,
    "driver_failed": DriverError,
    "io_failed": IoError,
    "out_of_memory": OutOfMemoryError,
    "internal": InternalError,
}
_BY_RULE = {
    "graph.frozen": FrozenError,
    "plan.stage": FrozenError,
    "plan.index": PlanIndexError,
    "pack.object": NotABufferError,
}


def make(code: str, rule: str, operand: str, got: str, want: str, text: str) -> Error:
    """The exception for a failure of the library, ready to be raised."""
    error = _BY_RULE.get(rule, _BY_CODE.get(code, InternalError))(text)
    error.code, error.rule, error.operand, error.got, error.want = code, rule, operand, got, want
    return error


for _class in list(globals().values()):
    if isinstance(_class, type) and issubclass(_class, Error):
        _class.__module__ = "verglas"  # where users find it
