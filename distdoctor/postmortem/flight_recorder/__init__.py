"""Dumps of torch's flight recorder: what each rank has called, from rings in memory.

`unpickling` reads a file without running anything, `decoding` makes columns of its
entries, `call_kinds` says what each call is in the terms of the model, `dump_files`
whose file it is, `memberships` who is in which group, and `assembling` puts the calls
of all ranks together.
"""
