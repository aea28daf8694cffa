"""`python -m distdoctor` is the `distdoctor` command."""

from distdoctor.cli import main

main()
