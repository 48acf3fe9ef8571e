"""What generated tests do to a text that is as a program prints it."""

import os
import random

STRANGE = (
    *('"', "{", "}", "[", "]", "\\u0000", "\\ud800", "1e999", "-1", "null", "\0", "\x1b[2J", "\r", "\n", "é", "\u2028"),
    *("Thread 0x", "Current thread 0x0 (most recent call first):", "Process 1: ", "    ", "  File ", ", line 999 in "),
    *("(", ")", ":", "9" * 40, "a" * 5000, "Traceback (most recent call last):\n", "\ufffd", "(idle)", "<module>"),
)


def mutated(text: str, dice: random.Random) -> str:
    for _ in range(dice.randint(1, 8)):
        at = dice.randrange(len(text) + 1)
        match dice.randrange(5):
            case 0:
                text = text[:at]
            case 1:
                text = text[:at] + dice.choice(STRANGE) + text[at:]
            case 2:
                text = text[:at] + text[at + dice.randint(1, 200) :]
            case 3:
                text = text[: at + 300] + text[at : at + 300] * dice.randint(1, 20) + text[at:]
            case _:
                other = dice.randrange(len(text) + 1)
                text = text[:at] + text[other : other + 500] + text[at:]
    return text


def dice_of(seed: int) -> random.Random:
    """The same chances in every run, but for `make fuzz` and `make explore`, which name others."""
    other = os.environ.get("DENPEXD_NEW_SEEDS")
    return random.Random(f"{seed} {other}" if other else seed)
