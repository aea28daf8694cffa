"""What NCCL's status and timings of communicators tell: who is gone, behind, late."""
