"""The pure core: events in, incidents out. Imports nothing of ours outside core, no clock, no I/O, no logging."""
