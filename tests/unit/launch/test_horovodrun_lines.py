"""What horovodrun prints: the ranks' lines as they are, and nothing of its own end."""

from distdoctor.launch.horovodrun_lines import HorovodrunLines

TRACEBACK = b"""\
Traceback (most recent call last):
  File "/opt/bin/horovodrun", line 8, in <module>
    sys.exit(run_commandline())
             ^^^^^^^^^^^^^^^^^
  File "/opt/horovod/runner/gloo_run.py", line 284, in launch_gloo
    raise RuntimeError('Horovod detected that one or more processes exited with '
RuntimeError: Horovod detected that one or more processes exited with non-zero status, \
thus causing the job to be terminated. The first process to do so was:
Process name: 1
Exit code: 3

"""

OF_AN_END = b"""\
Process 1 exit with status code 3.
Terminating remaining workers after failure of Process 1.
Process 0 exit with status code -15.
"""

LEAKED = b"""\
/usr/lib/python3.11/multiprocessing/resource_tracker.py:224: UserWarning: \
resource_tracker: There appear to be 2 leaked semaphore objects to clean up at shutdown
  warnings.warn('resource_tracker: There appear to be %d '
"""


def passed_on(output: bytes) -> bytes:
    lines = HorovodrunLines()
    taken = [part for line in output.splitlines(True) for part in lines.take(line)]
    return b"".join([*taken, *lines.rest()])


def test_its_words_on_a_rank_that_failed_are_left_out() -> None:
    ranks = b"[0]<stderr>:one\n[1]<stderr>:ValueError: two\n"
    assert passed_on(ranks + OF_AN_END + TRACEBACK + LEAKED) == ranks


def test_a_ranks_own_words_stay_even_if_they_are_the_same() -> None:
    marked = b"".join(
        b"[1]<stderr>:" + line
        for line in (OF_AN_END + TRACEBACK + LEAKED).splitlines(True)
    )
    assert passed_on(marked) == marked


def test_other_errors_of_the_launcher_stay() -> None:
    other = b"Traceback (most recent call last):\n  File ...\nOSError: no ssh\n"
    usage = b"usage: horovodrun [-h]\nhorovodrun: error: -np\n"
    assert passed_on(usage + other) == usage + other
    assert passed_on(other + b"[0]<stdout>:on\n") == other + b"[0]<stdout>:on\n"
    assert passed_on(other + TRACEBACK) == other


def test_a_long_text_is_not_held_back_for_ever() -> None:
    text = b"Traceback (most recent call last):\n" + b"  and so on\n" * 1000
    assert passed_on(text) == text
