"""NCCL's RAS: the status of a running job, asked for at a port, or saved in a file.

The client (`ras_client`) speaks the protocol, `ras_text` and `ras_json` read the two
forms of a report, `ras_reader` makes observations of them.
"""
