"""Asks NVML about every GPU and prints one line of JSON; run as a child, because a call into a lost GPU may not return.

Whatever a driver or GPU does not support is left out; only what is asked of the library stands here, no judgement.
"""

import json
import sys
from collections.abc import Callable
from typing import Any


def main() -> None:
    """`{"error": ...}` where the library or the driver is missing, else `{"gpus": [...]}`."""
    try:
        import pynvml as nvml
    except ImportError:
        answer: dict[str, Any] = {"error": "library"}
    else:
        answer = ask(nvml)
    sys.stdout.write(json.dumps(answer) + "\n")


def ask(nvml: Any) -> dict[str, Any]:
    """Everything the module tells of the GPUs."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return {"error": "driver", "text": str(error)[:200]}
    try:
        return {"gpus": [gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]}
    except nvml.NVMLError as error:
        return {"error": "driver", "text": str(error)[:200]}
    finally:
        nvml.nvmlShutdown()


def gpu(nvml: Any, index: int) -> dict[str, Any]:
    """One GPU; `lost` if the driver says that it is."""
    found: dict[str, Any] = {"index": index, "lost": False}

    def add(name: str, get: Callable[[], Any]) -> None:
        try:
            found[name] = get()
        except nvml.NVMLError as error:
            found["lost"] |= getattr(error, "value", None) == nvml.NVML_ERROR_GPU_IS_LOST
        except AttributeError:
            return  # an older library

    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        found["lost"] = getattr(error, "value", None) == nvml.NVML_ERROR_GPU_IS_LOST
        return found
    add("pci", lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    add("uuid", lambda: _text(nvml.nvmlDeviceGetUUID(handle)))
    add("used", lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu))
    add("clock", lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)))
    add("most", lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)))
    add("celsius", lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)))
    # The older of the two names is in every release of the library.
    add("reasons", lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
    errors = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    add("ecc", lambda: int(nvml.nvmlDeviceGetTotalEccErrors(handle, *errors)))
    add("pids", lambda: [int(one.pid) for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)])
    return found


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)


if __name__ == "__main__":
    main()
