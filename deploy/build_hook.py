"""Puts manual pages and completions, made from the command line itself, into share/ of the wheel."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPLETIONS = {
    "bash": "share/bash-completion/completions/denpexd",
    "zsh": "share/zsh/site-functions/_denpexd",
    "fish": "share/fish/vendor_completions.d/denpexd.fish",
}


class ManualPages(BuildHookInterface):
    """Runs for wheels, not for editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files and name their places."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from denpexd.cli import main
        from denpexd.completion import script
        from denpexd.manual import pages

        made = Path(self.root, "build", "share")
        made.mkdir(parents=True, exist_ok=True)
        files = {f"share/man/man1/{name}": text for name, text in pages(main).items()}
        files |= {place: script(shell, main) for shell, place in COMPLETIONS.items()}
        for place, text in files.items():
            file = made / place.replace("/", "-")
            file.write_text(text, encoding="utf-8")
            build_data.setdefault("shared_data", {})[str(file)] = place
