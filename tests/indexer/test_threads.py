"""Threads of a search: after a fork, and after the end of the program."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from capsearch.indexer.sqlite.nearest import Threads

SCRIPT = """
import threading, time
from capsearch.indexer.sqlite.nearest import Threads
threads = Threads(1)
threads.submit(int).result()
def late():
    threading.main_thread().join()
    time.sleep(0.2)
    print(threads.submit(lambda: "late").result())
threading.Thread(target=late).start()
"""


def test_work_is_done_in_threads_that_were_initialised():
    ready = threading.local()
    threads = Threads(2, lambda: setattr(ready, "yes", True))
    assert threads.submit(lambda: ready.yes).result()
    assert threads.submit(threading.current_thread).result() is not threading.current_thread()


def test_an_error_reaches_who_waits():
    with pytest.raises(ZeroDivisionError):
        Threads(1).submit(lambda: 1 / 0).result()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_starts_threads_of_its_own():
    threads = Threads(1)
    assert threads.submit(os.getpid).result() == os.getpid()
    child = os.fork()
    if child == 0:
        found = threads.submit(os.getpid).result(timeout=10)
        os._exit(0 if found == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_after_the_main_thread_has_ended_work_is_done_at_once():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == ("late", "")
