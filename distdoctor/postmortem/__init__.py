"""What a job left behind, read as one run: files of any kind in, a `Run` out.

`leavings` finds the files, `recognising` gives each to the reader of its kind, the
readers put what they learn into one `Evidence`, and `evidence_run` makes the run of it,
which is judged like any other.
"""
