"""Facts whose answers may change with an event, by what happened: the rules that ask for them are judged anew."""

ORDINARY = ("progress", "phase", "config", "handled", "caught", "advice", "device")  # roles of lines of no failure

OUTSIDE = ("oom_killed", "gpu_memory", "told_to_stop")
FACT_OF = {
    "attempt_failed": "restarted",
    "launched_less": "behind",
    "eased": "exhausted",
    "gpu_busy": "gpu_idle",
    "cpu_busy": "cpu_idle",
    "node_gone": "told_to_stop",
}
COLLECTIVE_FACTS = ("pending", "mismatch", "differs", "behind", "not_in_collective")
FIELD_FACTS = (*COLLECTIVE_FACTS, "fewer_steps")
STATED_FACTS = (
    *("stated", "stated_odd", "stated_differs", "stated_same"),
    *("missing_rank", "setting_odd", "settings_differ", "several_nodes"),
)
WAIT_FACTS = (
    *("no_report", "failed_itself", "left_first", "timed_out", "reported", "worked_on"),
    *("unreported", "named_peer", "missing_rank", *OUTSIDE),
)
STACK_FACTS = ("frame", "odd_stack", "busy", "mismatch", "differs", "missing_rank")
PHASE_FACTS = ("phase", "phase_alone", "fewer_steps", "ended", "overlong", "complete")
NUMBER_FACTS = ("metric_spread", "metric_odd", "nonfinite")  # of single lines
PACE_FACTS = ("slow", "late", "uneven", "throughput", "spike", "overlong", "parted")  # of many
END_FACTS = (
    *("exit", "gone", "raised", "ended", "fewer_steps", "complete"),
    *("unreported", "failed_itself", "left_first", *OUTSIDE),
)
