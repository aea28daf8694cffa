"""The functions for programs and notebooks, which `import distdoctor` offers."""
