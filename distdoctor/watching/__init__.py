"""Looks at a job while it runs, and only looks: `distdoctor watch`."""
