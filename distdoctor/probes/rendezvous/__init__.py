"""Probes of the rendezvous: how the ranks of a job find each other."""
