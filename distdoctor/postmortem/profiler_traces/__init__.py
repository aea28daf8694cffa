"""Traces of torch.profiler: how much of communication no computation overlaps.

`profiled_events` reads a file as a stream, `rank_timeline` keeps of it when a rank
communicated and computed, `joint_calls` matches collectives of all ranks by their order
in a group, and `profiler_reader` makes evidence of it. `interval_sets` has the
arithmetic.
"""
