"""distdoctor: finds what ails a distributed training job.

A job runs, probes write one journal per rank, the journals make a `Run`, every
check examines the run, and a report tells the reader what was found:

    launch -> probes -> journal -> model.Run -> analysis -> checks -> report
"""

__version__ = "0.1.0"
