"""Questions about NCCL: who broke, who differs, who is behind, by what its log says."""
