"""What is looked for in texts: one disease a file, found by its name.

A rule's docstring has programs in which it finds its disease, and such as look alike
and are healthy; they are its tests.
"""
