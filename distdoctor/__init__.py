"""distdoctor: finds what ails a distributed training job.

    import distdoctor

    distdoctor.check("train.py", nproc=2)

A job runs, probes write one journal per rank, the journals make a `Run`, every
check examines the run, and a report tells the reader what was found:

    launch -> probes -> journal -> model.Run -> analysis -> checks -> report
"""

# Nothing is imported here: the ranks of every job import this package.

__version__ = "0.1.0"

__all__ = ["Examination", "autopsy", "check", "examine"]

TYPE_CHECKING = False  # typing's own, which takes a while to import
if TYPE_CHECKING:
    from distdoctor.api.examination_result import Examination
    from distdoctor.api.examining_jobs import autopsy, check, examine
else:

    def __getattr__(name):
        """Load what programs and notebooks use, when they do."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        ways = "examination_result" if name == "Examination" else "examining_jobs"
        return getattr(importlib.import_module(f"distdoctor.api.{ways}"), name)

    def __dir__():
        """The names of the package, those that are not loaded yet included."""
        return sorted({*globals(), *__all__})
