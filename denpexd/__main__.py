"""`python -m denpexd`."""

from denpexd.cli import main

main()
