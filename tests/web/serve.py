"""Serves the console of a daemon that stands still, to look at it: python tests/web/serve.py [PORT]."""

import asyncio
import sys

from stand import stand

from denpexd.web.api import create_app
from denpexd.web.server import bind, serve

if __name__ == "__main__":
    daemon = stand()
    app = create_app(daemon, reference=daemon)
    asyncio.run(serve(app, bind("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8123), listening=print))
