"""Horovod's timeline (HOROVOD_TIMELINE): who had come to what when it ends.

`timeline_events` reads the events of a file as a stream, `negotiations` follows who
came to which operation, and `timeline_reader` makes evidence of what was open at the
end.
"""
