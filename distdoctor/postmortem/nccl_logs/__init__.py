"""NCCL's debug log as evidence: communicators, calls, errors.

`line_grammar` and `complaint_kinds` know the lines. `piece_scanner` finds them in a
piece of a file, in one pass and bounded memory: `word_sieve` passes over what says
nothing, `call_columns` and `call_blocks` read lines of calls many at a time, and
`line_reader`, `message_reader` and `call_reader` the others. `log_pieces` spreads files
over processes.

`communicator_ranks` finds out which process is which rank; `log_comparisons`,
`call_windows` and `message_pairs` compare what they tell. `log_observations` makes
observations of it, which `nccl_reader` puts into the evidence.
"""
