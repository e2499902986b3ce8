"""NVIDIA's library as the readers use it: each question may fail alone, and some failures say nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

Fields = dict[tuple[int, int], int]

LIBRARY = "libnvidia-ml.so.1"
# NVML_VALUE_TYPE_* -> the part of the union that holds the value
_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_DEPRECATED = 26  # NVML_ERROR_DEPRECATED, which older pynvml do not name


class NvmlError(RuntimeError):
    """NVML does not start. ``absent``: it found no driver at all."""

    def __init__(self, text: str, *, absent: bool) -> None:
        super().__init__(text)
        self.absent = absent


def load() -> Any:
    """Return ``pynvml``. Raises ``OSError`` without NVIDIA's library, ``ImportError`` without pynvml."""
    # Tried before pynvml is imported: nodes without GPUs do not pay for that.
    ctypes.CDLL(LIBRARY)
    import pynvml

    return pynvml


class Nvml:
    """The loaded and initialised library. ``close`` it, or end the process.

    ``errors`` has what should have been answered and was not since it was last emptied. Raises ``OSError`` if
    there is no library, ``ImportError`` without pynvml, and :class:`NvmlError`.
    """

    def __init__(self) -> None:
        pynvml = self.api = load()
        self.reference = ctypes.byref
        self.errors: dict[str, str] = {}
        self._cannot_say = (
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            pynvml.NVML_ERROR_NO_PERMISSION,
            pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            getattr(pynvml, "NVML_ERROR_DEPRECATED", _DEPRECATED),
        )
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            absent = error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED
            raise NvmlError(str(error), absent=absent) from error

    def close(self) -> None:
        """Let go of the driver."""
        try:
            self.api.nvmlShutdown()
        except self.api.NVMLError:
            pass  # A driver that died meanwhile has nothing to be shut down.

    def ask(self, name: str, *args: Any, not_here: tuple[int, ...] = ()) -> Any:
        """Return the answer of a function; None if this library, driver or GPU cannot say.

        ``not_here``: errors that mean the same for this question. Any other is kept in ``errors``, by the
        name of the function; that the GPU is lost or needs a reset is raised.
        """
        try:
            return getattr(self.api, name)(*args)
        except AttributeError:
            return None  # An older pynvml.
        except self.api.NVMLError as error:
            if error.value in (self.api.NVML_ERROR_GPU_IS_LOST, self.api.NVML_ERROR_RESET_REQUIRED):
                raise
            if not self.cannot_say(error.value) and error.value not in not_here:
                self.errors[name] = str(error)
            return None

    def cannot_say(self, code: int) -> bool:
        """Return whether an error says nothing of the GPU, only that there is no such answer for us."""
        return code in self._cannot_say

    def text(self, name: str, *args: Any) -> str:
        """Ask as :meth:`ask` does, for text; older pynvml return bytes."""
        found = self.ask(name, *args)
        return found.decode(errors="replace") if isinstance(found, bytes) else found or ""

    def fields(self, handle: Any, wanted: Sequence[int | tuple[int, int]]) -> Fields:
        """Return the values by field and scope (the link, for those that have one; else 0), without those
        that are not there.
        """
        found = {}
        for answer in self.ask("nvmlDeviceGetFieldValues", handle, list(wanted)) or ():
            code = answer.nvmlReturn
            if code == 0 and answer.valueType < len(_VALUES):
                # An older pynvml lacks the last two.
                value = getattr(answer.value, _VALUES[answer.valueType], None)
                if value is not None:
                    found[answer.fieldId, answer.scopeId] = int(value)
            elif code not in (0, self.api.NVML_ERROR_INVALID_ARGUMENT) and not self.cannot_say(code):
                self.errors[f"nvmlDeviceGetFieldValues {answer.fieldId}"] = str(self.api.NVMLError(code))
        return found
