"""Builds Horovod for the torch, or the TensorFlow, that a Python has.

There are no wheels of Horovod to download, and its last release does not compile with
the present releases of either by itself.
"""
