"""A rank that waits: in a method, below a generator, with a named thread, a pool and an event loop beside it."""

import asyncio
import faulthandler
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torchlike

faulthandler.register(signal.SIGUSR1, all_threads=True)


class Trainer:
    def batches(self):
        for number in range(10):
            yield torchlike.wait(number)

    def validate(self):
        return [list(self.batches()) for _ in range(1)]

    @staticmethod
    def fit(trainer):
        return trainer.validate()


async def serve():
    await asyncio.sleep(600)


def main():
    started = threading.Barrier(4)
    names = threading.Thread(target=lambda: (started.wait(), asyncio.run(serve())), name="metrics é", daemon=True)
    names.start()
    pool = ThreadPoolExecutor(1, thread_name_prefix="loader")
    pool.submit(lambda: (started.wait(), threading.Event().wait(600)))
    threading.Thread(target=lambda: (started.wait(), torchlike.wait(0)), daemon=True).start()
    started.wait()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    Trainer.fit(Trainer())
    os._exit(0)


if __name__ == "__main__":
    main()
