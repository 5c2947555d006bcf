"""The query of the main thread's line, by a signal that nothing else uses."""

import os
import signal
import threading
import time

from tf_hvd.core import main_thread


def test_signals_that_the_program_handles_are_not_used():
    first = main_thread._free_signal()
    before = signal.signal(first, lambda *_: None)
    try:
        second = main_thread._free_signal()
        assert second not in (None, first)
        assert signal.getsignal(second) == signal.SIG_DFL
        signal.pthread_sigmask(signal.SIG_BLOCK, [second])
        assert main_thread._free_signal() not in (None, first, second)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [second])
    finally:
        signal.signal(first, before)


def test_the_handler_writes_this_line_and_ends_no_sleep():
    number, file = main_thread.watched()
    assert (number, file) == main_thread.watched()
    thread = threading.main_thread().ident
    asked = threading.Timer(0.1, signal.pthread_kill, (thread, number))
    began = time.monotonic()
    asked.start()
    time.sleep(0.3)
    assert time.monotonic() - began >= 0.3
    asked.join()
    frames = os.pread(file, 1 << 16, 0).decode()
    assert __file__ in frames
    assert "in test_the_handler_writes_this_line" in frames
    assert not os.get_inheritable(file)
