"""A new rule to begin with: complete, commented, and well by `denpexd rules test`, so that every change is checked."""

from pathlib import Path

_TEMPLATE = r"""# yaml-language-server: $schema=@SCHEMA@
# A rule says what ONE rank shows (signals), which SETS of ranks show what (correlation, not needed for a failure of one
# rank), and what to tell (the texts). Its examples are its tests: denpexd rules test @FILE@
# The format: docs/rule-format.md. Begin with a rule that resembles yours: denpexd rules list --category @CATEGORY@
schema: 1
id: @ID@
title: Say in one line what is wrong
category: @CATEGORY@
severity: high                  # critical, high, medium, low
status: experimental            # stable once it has met real logs
domain: code                    # whose it is: code, configuration, data, infrastructure, hardware
scope: [training]               # training, evaluation, inference
tags: [change-me]
affects: ["which programs and versions"]
supersedes: [single-rank-exception]   # more general rules that the same evidence also fires

signals:
  raised:
    fact: raised                # an exception of any chain; better than `log` for Python exceptions
    type: 'ChangeMeError'       # matches the whole type without its module; `message` and `in` (a frame) are searched
    means: what this tells, as one English sentence that the report prints
  printed:
    log: 'change-me: device \d+ was lost'   # RE2, searched within one line; do not anchor it at the start
    except: 'retrying'          # a line that also matches this does not count
    means: why this line counts

# For failures of several ranks (see rules/hang/rank-only-collective.yaml):
# correlation:
#   roles:
#     culprit: {ranks: minority, any_of: [raised, printed]}
#     waiting: {ranks: rest, any_of: [torch.gloo_timeout]}
#   initiating: culprit
#   collateral: waiting

quick_answer: >
  The sentence to read first: what to do about rank {initiating}.
root_cause: >
  Why it happens, with versions.
mechanism: >
  What rank {initiating} does, and how that stops ranks {collateral}.
symptoms:
  - see: what a person sees
    because: why that is so
confirm:
  - The cheapest check first.
remediation:
  - do: Look at it.
    risk: read-only             # read-only, config, restart, disruptive
    command: "grep -n change-me LOG_OF_RANK"
  - do: Mend it.
    risk: config
fallback: >
  What to do if that does not help.
verification: "the command that shows that it worked"
prevention: >
  How it does not come back.
false_positives:
  - What looks like it and is not.
missing:
  - fact: what would make the verdict certain
    how: the command that tells it
resume_safe: check - whether the last checkpoint can be trusted; begins with yes, no or check.
references:
  - https://example.org/change-me
related: []

examples:                       # seconds  ranks  kind  text; kinds: | a line, > a stack, ! a fact such as exit code=1
  - name: the exception ends a rank
    world_size: 2
    observe_until: 60
    timeline: |
      10    *   | step 100 loss 2.31
      12    *   | step 110 loss 2.29
      14    1   | Traceback (most recent call last):
      14    1   |   File "/ws/train.py", line 62, in main
      14    1   |     train()
      14    1   | driver.ChangeMeError: device 3
      15    1   ! exit code=1
    expect: {initiating: [1], collateral: [0], by: 50}
  - name: only the line is printed
    world_size: 2
    observe_until: 60
    timeline: |
      10    *   | step 100 loss 2.31
      12    *   | step 110 loss 2.29
      14    1   | change-me: device 3 was lost
      15    1   ! exit code=1
    expect: {initiating: [1], collateral: [0], by: 50}
  - name: the driver helps itself, then something else fails
    world_size: 2
    observe_until: 60
    timeline: |
      10    *   | step 100 loss 2.31
      12    *   | step 110 loss 2.29
      13.5  1   | change-me: device 3 was lost, retrying
      14    1   | Traceback (most recent call last):
      14    1   |   File "/ws/train.py", line 62, in main
      14    1   |     train()
      14    1   | ValueError: bad sample
      15    1   ! exit code=1
    expect: none
  - name: a healthy job
    world_size: 2
    observe_until: 60
    timeline: |
      10    *   | step 100 loss 2.31
      12    *   | step 110 loss 2.29
      14    *   | training finished
      15    *   ! exit code=0
    expect: none
"""


def skeleton(rule_id: str, category: str, path: Path, schema: str) -> str:
    """The text of a new rule file at `path`; `schema` is where editors find the JSON Schema."""
    values = {"@ID@": rule_id, "@CATEGORY@": category, "@FILE@": str(path), "@SCHEMA@": schema}
    text = _TEMPLATE
    for place, value in values.items():
        text = text.replace(place, value)
    return text
