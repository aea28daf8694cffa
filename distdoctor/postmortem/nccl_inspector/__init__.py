"""Records of NCCL's Inspector: how long each collective took on each rank.

The Inspector is a profiler plugin that comes with NCCL (`ext-profiler/inspector` of
NVIDIA/nccl). Each process writes a file, HOST-pidPID.log, with a line of JSON for each
collective that it dumped: the latest of each communicator, at each interval.
"""
