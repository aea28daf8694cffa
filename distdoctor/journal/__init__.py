"""Journals: a black box per rank's process, readable while it lives and afterwards."""
