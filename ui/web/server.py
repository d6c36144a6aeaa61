"""What `streamlit run` serves: `streamlit run server.py ... -- PAGE`.

Streamlit runs the page anew for every visitor and every change; this file once, as the process
starts.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import streamlit as st

GRACE_S = 5.0  # between asking a process to end and ending it


def end_with_parent() -> None:
    """End this process when stdin closes, which `capsearch ui` holds open as long as it runs.

    A server that outlived it would go on to show photographs, with nobody to stop it.
    """

    def wait_for_the_end() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(GRACE_S)
        os._exit(1)

    threading.Thread(target=wait_for_the_end, daemon=True, name="parent").start()


if __name__ != "__main__":  # `streamlit run` imports it
    end_with_parent()
    app = st.App(Path(sys.argv[1]))
