"""Probes of models: how their parameters originate, and what changes them."""
