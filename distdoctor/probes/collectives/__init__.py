"""Probes of collectives and point-to-point messages, in torch's dispatcher."""
