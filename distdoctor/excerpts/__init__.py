"""Shows a disease as code: programs with it and without, cut to what matters."""
