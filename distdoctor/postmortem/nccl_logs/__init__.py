"""NCCL's debug log as evidence: communicators, calls, errors.

`line_grammar` and `complaint_kinds` know the lines, `piece_scanner` reads a piece of a
file in one pass and bounded memory, `log_pieces` spreads files over processes,
`communicator_ranks` finds out which process is which rank, `call_windows` compares what
ranks called, and `nccl_reader` puts all of it into the evidence.
"""
