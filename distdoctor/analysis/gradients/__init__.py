"""What becomes of gradients between backward and the optimizer's step."""
