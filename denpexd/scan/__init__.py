"""Bytes in, events out: which lines matter, who wrote them, and what the lines around them say.

Reading order: loosen (a pattern as a byte-level prefilter), engine with hyperscan_engine and re2_engine (which bytes
of a chunk may hit), lines (colours, container envelopes, "handled"), prefixes (whose line it is), frames, blocks and
dumps (tracebacks and stacks), launcher (what launchers print), stream (all of it together; state of one file or pipe).
"""
