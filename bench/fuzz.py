"""The generated tests of hostile input again and again, with new random input, for some minutes each.

Run by hand: `make fuzz` (MINUTES=15 each), or `python bench/fuzz.py [MINUTES [WORD]]`, WORD a part of a test's name.
As many at once as there are processors. Prints how often each ran; a failure ends the runs of its test, and is shown
with what to repeat it by.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

TARGETS = {  # name: file, tests
    "lines": ("test_input_fuzz.py", "no_line"),
    "rules": ("test_input_fuzz.py", "damaged_rule"),
    "configuration": ("test_input_fuzz.py", "damaged_configuration"),
    "requests": ("test_input_fuzz.py", "no_request"),
    "stacks": ("test_evidence_fuzz.py", ""),
    "dumps": ("test_flight_fuzz.py", ""),
    "ras": ("test_ras_fuzz.py", ""),
}
TIMES = "4"  # as many inputs as usual, in one run


def fuzz(name: str, minutes: float) -> bool:
    """Run one target for that long; whether nothing failed."""
    file, tests = TARGETS[name]
    until, runs = time.monotonic() + 60 * minutes, 0
    while time.monotonic() < until:
        seed = str(time.time_ns() % 2**31)
        command = [sys.executable, "-m", "pytest", "-q", "--timeout", "0", "--randomly-seed", seed]
        command += [f"tests/property/{file}", *(["-k", tests] if tests else [])]
        environ = {**os.environ, "DENPEXD_EXPLORE": TIMES, "DENPEXD_NEW_SEEDS": seed}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            again = f"DENPEXD_EXPLORE={TIMES} DENPEXD_NEW_SEEDS={seed} {' '.join(command)}"
            print(f"{done.stdout[-6000:]}\n{name}: failed. Again:\n{again}")
            return False
        runs += 1
    print(f"{name}: {runs} runs of {TIMES} times the usual number, no failure", flush=True)
    return True


if __name__ == "__main__":
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 15.0
    word = sys.argv[2] if len(sys.argv) > 2 else ""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        passed = list(pool.map(lambda name: fuzz(name, minutes), [name for name in TARGETS if word in name]))
    sys.exit(not all(passed))
