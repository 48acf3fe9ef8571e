"""denpexd: a streaming daemon that explains distributed-training failures while they happen."""

__version__ = "0.1.0"
