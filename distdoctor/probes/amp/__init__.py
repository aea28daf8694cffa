"""Probes of mixed precision: autocast, GradScaler, parameters in half precision."""
