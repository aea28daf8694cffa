"""Brings the probes into a Python process before its first line runs.

Python imports `sitecustomize` at start-up. This one steps off the path, lets the
machine's own `sitecustomize`, if there is one, have its turn, and starts the probes.
The job may run in another environment than distdoctor: then the package is loaded
from where it lies, without putting its neighbours on the job's path.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs 5 ms


def _chain() -> None:
    import importlib.machinery
    import importlib.util

    elsewhere = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]  # noqa: PTH100
    sys.path[:] = elsewhere
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _load() -> None:
    import importlib.util

    if importlib.util.find_spec("distdoctor") is None:
        package = os.path.dirname(os.path.dirname(_HERE))  # noqa: PTH120
        spec = importlib.util.spec_from_file_location(
            "distdoctor",
            os.path.join(package, "__init__.py"),  # noqa: PTH118
            submodule_search_locations=[package],
        )
        if spec is None or spec.loader is None:
            return
        module = importlib.util.module_from_spec(spec)
        sys.modules["distdoctor"] = module
        spec.loader.exec_module(module)
    from distdoctor.probes import own_imports

    with own_imports.at_start():
        if os.environ.get("DISTDOCTOR_HEAD"):  # a job over several nodes
            from distdoctor.probes import node_entry

            try:
                node_entry.enter()
            except BaseException:
                os.environ.pop("DISTDOCTOR_RUN")  # nor in what this process starts
                raise
        from distdoctor.probes import boot

        boot.start()


try:
    _chain()
finally:
    if os.environ.get("DISTDOCTOR_RUN"):
        try:
            _load()
        except Exception as error:  # noqa: BLE001 - the job runs on without probes
            sys.stderr.write(f"distdoctor: no probes in this process: {error!r}\n")
