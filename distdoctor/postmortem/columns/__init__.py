"""Calls of very many ranks as Parquet files, queried by DuckDB out of core.

`column_writing` turns dumps of flight recorders into parts, each of some files, which
many machines can write side by side. `window_queries` finds in all parts where ranks
begin to differ, and `column_reader` hands what matters of each ring to the reader of
dumps: there is one alignment, and it is the one that a small folder gets.
"""
