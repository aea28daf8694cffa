"""What a job printed: a reader of its output, whoever wrote it down.

`lines` reads a file in constant memory, `prefixes` tells who printed a line, the
parsers (`printed_tracebacks`, `torchrun_summaries`, `said`) tell what it says,
`hearing` gathers that by rank, and `telling` makes events of it: causes and victims
apart.
"""
