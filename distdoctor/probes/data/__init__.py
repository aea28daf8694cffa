"""Probes of data loading: DataLoaders, samplers, samples and batches."""
